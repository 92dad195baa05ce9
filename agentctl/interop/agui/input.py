"""The body of a request: `RunAgentInput` of AG-UI, read with its bounds.

The protocol lets either side send fields that the other does not know: they are ignored. A field
that is read and has another type is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from agentctl.errors import ValidationFailed
from agentctl.interface.requests import EarlierMessage
from agentctl.interface.requests.approvals import MAXIMUM_DECISIONS
from agentctl.light_dataclass import dataclass
from agentctl.records.ids import is_session_id
from agentctl.records.validation import check_json, check_text
from agentctl.runtime.tools.external import MAXIMUM_TOOLS

MAXIMUM_MESSAGES = 2_048
"""Maximum number of messages in a request."""

MAXIMUM_CONTEXT = 64
"""Maximum number of entries of `context` in a request."""

MAXIMUM_RUN_ID_LENGTH = 255
"""Characters of `runId`, which every stream repeats."""

_SKIPPED_ROLES = frozenset({"activity", "assistant", "developer", "reasoning", "system"})
"""The roles whose messages are not read: the history is that of the session."""

_TYPE_NAMES: dict[type, str] = {dict: "an object", list: "an array", str: "a text"}


@dataclass(frozen=True, slots=True)
class ResumeAnswer:
    """An entry of `resume`: the answer to one interrupt, or none; `at` is its place in the body."""

    at: str
    interrupt_id: str
    is_cancelled: bool
    payload: Any
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A message of the role `tool`: the result, or the error, of a call that the page made."""

    call_id: str
    content: str
    error: str | None


@dataclass(frozen=True, slots=True)
class AguiRequest:
    """A request.

    Attributes:
        thread_id: id of the session.
        run_id: the name of the stream, which the page has chosen.
        has_version: True if the page declares a version of the protocol, as pages since 1.0 do.
        message: the newest message of the user, if it is the last one; else None.
        results: the messages of the role `tool` after the last one of the user.
        tools: the tools of the page, whose schemas are not checked yet; None without any.
        state: the top-level keys of the session's state; None for no change.
    """

    thread_id: str
    run_id: str
    has_version: bool
    message: str | None
    results: Sequence[ToolResult]
    answers: Sequence[ResumeAnswer]
    context: Sequence[EarlierMessage]
    tools: list[dict[str, Any]] | None
    state: dict[str, Any] | None
    forwarded: dict[str, Any] | None

    @property
    def continues(self) -> bool:
        """True if the request goes on with a paused run."""
        return bool(self.answers or (self.message is None and self.results))


def read_input(body: object) -> AguiRequest:
    """Return a request from its parsed body; ValidationFailed for a field that is not valid."""
    given = _check(body, dict, "The body")
    thread_id = _check(given.get("threadId"), str, "threadId")
    if not is_session_id(thread_id):
        raise ValidationFailed(
            "threadId must be 1 to 128 characters of A-Z, a-z, 0-9 and . _ ~ @ -, but not . or .."
        )
    run_id = _check(given.get("runId"), str, "runId")
    if not 1 <= len(run_id) <= MAXIMUM_RUN_ID_LENGTH:
        raise ValidationFailed(f"runId must be 1 to {MAXIMUM_RUN_ID_LENGTH} characters")
    messages = _read_list(given, "messages", MAXIMUM_MESSAGES)
    answers = _read_list(given, "resume", MAXIMUM_DECISIONS)
    message, results = _read_newest(messages)
    found = AguiRequest(
        thread_id=thread_id,
        run_id=run_id,
        has_version=given.get("protocolVersion") is not None,
        message=message,
        results=results,
        answers=[_read_answer(entry, f"resume[{index}]") for index, entry in enumerate(answers)],
        context=_read_context(_read_list(given, "context", MAXIMUM_CONTEXT)),
        tools=_read_tools(given),
        state=_read_object(given, "state"),
        forwarded=_read_object(given, "forwardedProps"),
    )
    if found.message is None and not found.continues:
        raise ValidationFailed(
            "messages must end with a message of the user, or with the results of tools"
        )
    return found


def _read_newest(messages: Sequence[Any]) -> tuple[str | None, list[ToolResult]]:
    """Return the text of the user if it is the newest message, and the results of tools after it.

    Earlier messages are not read.
    """
    results: list[ToolResult] = []
    is_last = True
    for index in range(len(messages) - 1, -1, -1):
        at = f"messages[{index}]"
        message = _check(messages[index], dict, at)
        role = message.get("role")
        if role == "tool":
            is_last = False
            results.append(_read_result(message, at))
        elif role == "user":
            text = _read_text(message.get("content"), f"{at}.content") if is_last else None
            return text, results[::-1]
        elif role not in _SKIPPED_ROLES:
            raise ValidationFailed(f"{at}.role must be a role of AG-UI")
        elif role == "assistant":
            is_last = False
    return None, results[::-1]


def _read_result(message: dict[str, Any], at: str) -> ToolResult:
    error = message.get("error")
    return ToolResult(
        _check(message.get("toolCallId"), str, f"{at}.toolCallId"),
        _read_text(message.get("content"), f"{at}.content"),
        None if error is None else _check(error, str, f"{at}.error"),
    )


def _read_text(content: object, at: str) -> str:
    if isinstance(content, str):
        return check_text(at, content)
    texts = []
    for index, part in enumerate(_check(content, list, at)):
        if _check(part, dict, f"{at}[{index}]").get("type") != "text":
            raise ValidationFailed(f"{at}[{index}] is not supported: messages are text")
        texts.append(_check(part.get("text"), str, f"{at}[{index}].text"))
    return "".join(texts)


def _read_answer(entry: object, at: str) -> ResumeAnswer:
    given = _check(entry, dict, at)
    status: Literal["resolved", "cancelled"] | Any = given.get("status")
    if status not in ("resolved", "cancelled"):
        raise ValidationFailed(f"{at}.status must be resolved or cancelled")
    return ResumeAnswer(
        at,
        _check(given.get("interruptId"), str, f"{at}.interruptId"),
        status == "cancelled",
        given.get("payload"),
        _check(given.get("metadata") or {}, dict, f"{at}.metadata"),
    )


def _read_context(entries: Sequence[Any]) -> list[EarlierMessage]:
    lines = []
    for index, entry in enumerate(entries):
        at = f"context[{index}]"
        given = _check(entry, dict, at)
        name = _check(given.get("description"), str, f"{at}.description")
        lines.append(f"{name}: {_check(given.get('value'), str, f'{at}.value')}")
    text = "\n".join(["Context of the page of the user:", *lines])
    return [EarlierMessage("user", text)] if lines else []


def _read_tools(given: dict[str, Any]) -> list[dict[str, Any]] | None:
    tools = []
    for index, entry in enumerate(_read_list(given, "tools", MAXIMUM_TOOLS)):
        tool = _check(entry, dict, f"tools[{index}]")
        tools.append({name: tool.get(name) for name in ("name", "description", "parameters")})
    return tools or None


def _read_list(given: dict[str, Any], name: str, limit: int) -> Sequence[Any]:
    entries: Sequence[Any] = _check(given.get(name) or [], list, name)
    if len(entries) > limit:
        raise ValidationFailed(f"{name} must have at most {limit} entries")
    return entries


def _read_object(given: dict[str, Any], name: str) -> dict[str, Any] | None:
    value = given.get(name)
    return None if value is None else _check(value, dict, name) or None


def _check(value: Any, kind: type, at: str) -> Any:
    """Return a value that has a JSON type and can be stored."""
    if not isinstance(value, kind):
        raise ValidationFailed(f"{at} must be {_TYPE_NAMES[kind]}")
    if isinstance(value, str):
        check_text(at, value)
    elif at in ("state", "forwardedProps"):
        check_json(at, value)
    return value
