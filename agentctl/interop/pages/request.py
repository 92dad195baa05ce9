"""A request of a page, and the checks of its fields.

A page sends its whole conversation, which is not trusted: only its newest message is read, and the
history is that of the session. Fields that are not known are ignored, because clients send their
own; a field that is read and has another type is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentctl.errors import ValidationFailed
from agentctl.interface.requests import EarlierMessage
from agentctl.light_dataclass import dataclass
from agentctl.records.ids import is_session_id
from agentctl.records.validation import check_json, check_text
from agentctl.runtime.tools.external import MAXIMUM_TOOLS

MAXIMUM_MESSAGES = 2_048
"""Maximum number of messages in a request."""

_FREE_FORM = ("state", "forwardedProps", "dependencies")
"""Fields whose values are stored, or given to code, unchanged."""

_TYPE_NAMES: dict[type, str] = {dict: "an object", list: "an array", str: "a text"}


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """The answer to one approval, or none; `at` is its place in the body.

    `payload` has `approved`, for a call in doubt `outcome`, and what else a decision can have.
    """

    at: str
    approval_id: str
    payload: Any
    is_cancelled: bool = False
    arguments_hash: object = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result, or the error, of a call that the page made, or of a question that it asked."""

    call_id: str
    content: Any
    error: str | None


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request.

    Attributes:
        thread_id: id of the session.
        message: the newest message of the user, if it is the last one; else None.
        results: the results of calls after it.
        tools: the tools of the page, whose schemas are not checked yet; None without any.
        context: messages before `message` that are not stored.
        state: the top-level keys of the session's state; None for no change.
    """

    thread_id: str
    message: str | None
    results: Sequence[ToolResult]
    answers: Sequence[PageAnswer]
    tools: list[dict[str, Any]] | None
    dependencies: dict[str, Any] | None
    context: Sequence[EarlierMessage] = ()
    state: dict[str, Any] | None = None

    @property
    def continues(self) -> bool:
        """True if the request goes on with a paused run."""
        return bool(self.answers or (self.message is None and self.results))


def read_thread_id(given: Mapping[str, Any], name: str) -> str:
    """Return the id of the conversation, which is that of its session."""
    thread_id: str = check_value(given.get(name), str, name)
    if not is_session_id(thread_id):
        raise ValidationFailed(
            f"{name} must be 1 to 128 characters of A-Z, a-z, 0-9 and . _ ~ @ -, but not . or .."
        )
    return thread_id


def read_tools(entries: Sequence[Any]) -> list[dict[str, Any]] | None:
    """Return the tools of a page, without the members that only its client knows."""
    tools = []
    for index, entry in enumerate(read_list({"tools": entries}, "tools", MAXIMUM_TOOLS)):
        tool = check_value(entry, dict, f"tools[{index}]")
        tools.append({name: tool.get(name) for name in ("name", "description", "parameters")})
    return tools or None


def read_text(content: object, at: str) -> str:
    """Return the text of a message: a text, or an array of parts, which have to be texts."""
    if isinstance(content, str):
        return check_text(at, content)
    texts = []
    for index, part in enumerate(check_value(content, list, at)):
        place = f"{at}[{index}]"
        kind = check_value(part, dict, place).get("type")
        if kind != "text":
            raise ValidationFailed(f"{place} is not supported: messages are text")
        texts.append(check_value(part.get("text"), str, f"{place}.text"))
    return "".join(texts)


def read_list(given: Mapping[str, Any], name: str, limit: int) -> Sequence[Any]:
    """Return an array with at most `limit` entries; empty if the field is missing."""
    entries: Sequence[Any] = check_value(given.get(name) or [], list, name)
    if len(entries) > limit:
        raise ValidationFailed(f"{name} must have at most {limit} entries")
    return entries


def read_object(given: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return an object; None if the field is missing or empty."""
    value = given.get(name)
    return None if value is None else check_value(value, dict, name) or None


def check_value(value: Any, kind: type, at: str) -> Any:
    """Return a value that has a JSON type and can be stored; ValidationFailed for another one."""
    if not isinstance(value, kind):
        raise ValidationFailed(f"{at} must be {_TYPE_NAMES[kind]}")
    if isinstance(value, str):
        check_text(at, value)
    elif at in _FREE_FORM:
        check_json(at, value)
    return value
