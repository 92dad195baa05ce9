"""The messages and items of requests: earlier messages, the message of the run, and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from agentctl.errors import ValidationFailed
from agentctl.interface.requests import EarlierMessage
from agentctl.interop.openai.calls import (
    CallResult,
    read_approval_response,
    read_arguments,
    read_call_result,
)
from agentctl.interop.openai.failures import RefusedParameter
from agentctl.interop.openai.parameters import (
    MAXIMUM_MESSAGES,
    check_type,
    get_public_name,
    read_text,
)
from agentctl.server.given_files import GivenFile

CONTINUE = "Continue your last answer where it ends."
"""The message of a run whose request ends with an answer."""

GO_ON = "Go on with the results of these calls."
"""The message of a run whose request ends with results of calls of another agent."""

NAME = "messages.name"
"""The name of the ignored member `name` in `X-Ignored-Parameters`."""

_ANSWERED = ("function_call_output", "mcp_approval_response")
"""The types of items with which a run continues."""

_WITHOUT_EFFECT = ("reasoning", "mcp_approval_request")
"""The types of items of earlier responses that an agent does not receive."""

_PLAIN = ("role", "content", "type", "id", "status", "phase", "name")
"""The members of a message that are read, or have no effect."""


class RequestMessages(NamedTuple):
    """The messages of a request."""

    message: str
    """The message of the run; empty if the request has results."""

    earlier: list[EarlierMessage]

    instructions: list[EarlierMessage]
    """The earlier messages with the role system or developer."""

    results: list[CallResult]
    """Results of calls, with which the run continues that made them."""

    has_names: bool = False
    """True if a message has a name, which has no effect."""

    files: Mapping[int, Sequence[GivenFile]] = {}
    """The files of messages, by the index of the message in `earlier`; `message` has the index
    after the last of them."""

    read_history: Callable[[], RequestMessages | None] = lambda: None
    """Reads a request that ends with results as messages before a run; returns None if it does not
    have the calls themselves."""


def read_chat_messages(items: Sequence[object]) -> RequestMessages:
    """Return the messages of a chat completion."""

    def read(item: Mapping[str, Any], at: str) -> CallResult | None:
        if item.get("role") != "tool":
            return None
        content = item.get("content")
        text = read_text("" if content is None else content, f"{at}.content")
        return read_call_result(item.get("tool_call_id"), text, f"{at}.tool_call_id")

    return _read_request(items, "messages", read)


def read_input_items(items: Sequence[object]) -> RequestMessages:
    """Return the messages of a response."""

    def read(item: Mapping[str, Any], at: str) -> CallResult | None:
        if not is_result(item):
            return None
        if item["type"] == "mcp_approval_response":
            return read_approval_response(item, at)
        text = read_text(item.get("output"), f"{at}.output")
        return read_call_result(item.get("call_id"), text, f"{at}.call_id")

    return _read_request(items, "input", read)


def _read_request(
    items: Sequence[object],
    at: str,
    read_result: Callable[[Mapping[str, Any], str], CallResult | None],
) -> RequestMessages:
    """Return the results at the end of a request, or without them its messages."""
    if not 0 < len(items) <= MAXIMUM_MESSAGES:
        raise ValidationFailed(f"{at} must have 1 to {MAXIMUM_MESSAGES} messages")

    results: list[CallResult] = []

    for index in range(len(items) - 1, -1, -1):
        item = items[index]
        result = read_result(item, f"{at}[{index}]") if isinstance(item, dict) else None
        if result is None:
            break
        results.insert(0, result)

    if results:
        # The run has the messages before them.
        read_history = partial(_read_history, items, at)
        return RequestMessages("", [], [], results, read_history=read_history)

    return _read_messages(items, at)


def _read_history(items: Sequence[object], at: str) -> RequestMessages | None:
    """Return a request that ends with results of calls as messages before a run.

    The calls are those of another agent, or of an earlier program.
    """
    try:
        return _read_messages(items, at)
    except _LostCall:
        return None


def _read_messages(items: Sequence[object], at: str) -> RequestMessages:
    reader = _Reader()
    for index, item in enumerate(items):
        reader.read(check_type(item, dict, f"{at}[{index}]"), f"{at}[{index}]")

    if not reader.messages:
        raise RefusedParameter(f"{at} has no message", at)

    last = reader.messages[-1]
    if last.role == "user":
        message = last.content
        earlier = reader.messages[:-1]
    else:
        message = CONTINUE if last.role == "assistant" else GO_ON
        earlier = reader.messages

    return RequestMessages(
        message, earlier, reader.instructions, [], reader.has_names, reader.files
    )


class _LostCall(RefusedParameter):
    """A result of a call that is not in the request (400)."""


def _refuse_unknown_members(item: Mapping[str, Any], at: str) -> None:
    """Refuse a message with a member that has a value and no effect here."""
    for name, value in item.items():
        if name in _PLAIN or value in (None, [], ""):
            continue
        public_name = get_public_name(name) or "a field"
        raise RefusedParameter(f"{at}: {public_name} is not supported: leave it out", at)


def is_result(item: object) -> bool:
    """Return True for an item that continues the run which has made a call."""
    return isinstance(item, dict) and item.get("type") in _ANSWERED


class _Reader:
    """Reads messages in their order, as earlier messages of a run."""

    def __init__(self) -> None:
        self.messages: list[EarlierMessage] = []
        self.instructions: list[EarlierMessage] = []
        self.has_names = False
        self.files: dict[int, list[GivenFile]] = {}
        self._tool_names: dict[str, str] = {}

    def read(self, item: Mapping[str, Any], at: str) -> None:
        """Read a message, or an item of a response; RefusedParameter if it has another form."""
        kind = item.get("type") or "message"
        if kind in _WITHOUT_EFFECT:
            return

        if kind == "function_call":
            self._add_calls("", [self._read_call(item.get("call_id"), item, at)])
        elif kind == "function_call_output":
            self._add_result(item.get("call_id"), item.get("output"), f"{at}.output", at)
        elif kind != "message":
            raise RefusedParameter(
                f"{at} is not supported: items are messages, function calls and their results",
                f"{at}.type",
            )
        elif item.get("role") == "tool":
            self._add_result(item.get("tool_call_id"), item.get("content"), f"{at}.content", at)
        else:
            self._add_message(item, at)

    def _add_message(self, item: Mapping[str, Any], at: str) -> None:
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise RefusedParameter(
                f"{at}.role must be user, assistant, system, developer or tool", f"{at}.role"
            )

        # Libraries keep more members in the answers that they send back.
        if role != "assistant":
            _refuse_unknown_members(item, at)

        if item.get("name"):
            self.has_names = True

        calls = list[dict[str, Any]]()
        for call in check_type(item.get("tool_calls") or [], list, f"{at}.tool_calls"):
            if check_type(call, dict, f"{at}.tool_calls"):
                function = call.get("function")
                calls.append(self._read_call(call.get("id"), function, f"{at}.tool_calls"))

        content = item.get("content")
        if content is None and role == "assistant":
            # Libraries send back answers that have only calls or a refusal, and empty answers.
            content = item.get("refusal") or ""

        files: list[GivenFile] | None = [] if role == "user" else None
        text = read_text(content, f"{at}.content", files)
        if files:
            self.files[len(self.messages)] = files

        if role == "assistant":
            self._add_calls(text, calls)
            return

        message = EarlierMessage("user", text)
        self.messages.append(message)
        if role != "user":
            self.instructions.append(message)

    def _add_calls(self, text: str, calls: list[dict[str, Any]]) -> None:
        """Add an answer with calls; calls without a text belong to the answer before them."""
        answer_before = self.messages[-1] if self.messages else None
        if not text and answer_before is not None and answer_before.role == "assistant":
            # The calls of one answer are several items of a response.
            self.messages.pop()
            text = answer_before.content
            calls = [*answer_before.calls, *calls]
        self.messages.append(EarlierMessage("assistant", text, tuple(calls)))

    def _read_call(self, call_id: object, function: object, at: str) -> dict[str, Any]:
        """Return a call of an earlier answer, and keep the name of its tool for its result."""
        members: Mapping[str, Any] = check_type(function, dict, at)
        name = check_type(members.get("name"), str, f"{at}.name")
        known_id = check_type(call_id, str, f"{at}.id")
        self._tool_names[known_id] = name

        arguments = read_arguments(members.get("arguments"), f"{at}.arguments")
        return {"id": known_id, "name": name, "arguments": arguments}

    def _add_result(self, call_id: object, content: object, where: str, at: str) -> None:
        known_id = check_type(call_id, str, at)
        if known_id not in self._tool_names:
            raise _LostCall(f"{at} is the result of a call that is not in the request", at)

        self.messages.append(
            EarlierMessage(
                "tool",
                read_text("" if content is None else content, where),
                call_id=known_id,
                tool_name=self._tool_names[known_id],
            )
        )
