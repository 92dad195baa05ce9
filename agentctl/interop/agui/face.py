"""The requests below `/agui`, and their body, `RunAgentInput` of AG-UI (docs/agui.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson
from starlette.responses import Response

from agentctl.errors import AgentctlError, ValidationFailed
from agentctl.interface.requests import EarlierMessage
from agentctl.interface.requests.approvals import MAXIMUM_DECISIONS
from agentctl.interop.agui.events import AguiStream
from agentctl.interop.agui.settings import PREFIX, ROUTES
from agentctl.interop.pages.decisions import ResumedRun
from agentctl.interop.pages.exchange import PageExchange, PageFace, Portions
from agentctl.interop.pages.request import (
    MAXIMUM_MESSAGES,
    PageAnswer,
    PageRequest,
    ToolResult,
    check_value,
    read_list,
    read_object,
    read_text,
    read_thread_id,
    read_tools,
)
from agentctl.light_dataclass import dataclass

MAXIMUM_CONTEXT = 64
"""Maximum number of entries of `context` in a request."""

MAXIMUM_SHOWN_STATE = 16_384
"""Bytes of JSON of the largest `state` that a model is shown."""

MAXIMUM_RUN_ID_LENGTH = 255
"""Characters of `runId`, which every stream repeats."""

_SKIPPED_ROLES = frozenset({"activity", "assistant", "developer", "reasoning", "system"})
"""The roles whose messages are not read: the history is that of the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AguiRequest(PageRequest):
    """A request.

    Attributes:
        run_id: the name of the stream, which the page has chosen.
        has_version: True if the page declares a version of the protocol, as pages since 1.0 do.
    """

    run_id: str
    has_version: bool

    def describe_state(self) -> list[EarlierMessage]:
        """Return the message that shows the state of the page to a model; none without a state."""
        if self.state is None:
            return []
        text = orjson.dumps(self.state)
        if len(text) > MAXIMUM_SHOWN_STATE:
            return [
                EarlierMessage("user", "The state of the page of the user is too large to show.")
            ]
        return [EarlierMessage("user", f"State of the page of the user:\n{text.decode()}")]


def read_input(body: object) -> AguiRequest:
    """Return a request from its parsed body; ValidationFailed for a field that is not valid."""
    given = check_value(body, dict, "The body")
    thread_id = read_thread_id(given, "threadId")
    run_id = check_value(given.get("runId"), str, "runId")
    if not 1 <= len(run_id) <= MAXIMUM_RUN_ID_LENGTH:
        raise ValidationFailed(f"runId must be 1 to {MAXIMUM_RUN_ID_LENGTH} characters")
    messages = read_list(given, "messages", MAXIMUM_MESSAGES)
    answers = read_list(given, "resume", MAXIMUM_DECISIONS)
    message, results = _read_newest(messages)
    found = AguiRequest(
        thread_id=thread_id,
        run_id=run_id,
        has_version=given.get("protocolVersion") is not None,
        message=message,
        results=results,
        answers=[_read_answer(entry, f"resume[{index}]") for index, entry in enumerate(answers)],
        context=_read_context(read_list(given, "context", MAXIMUM_CONTEXT)),
        tools=read_tools(check_value(given.get("tools") or [], list, "tools")),
        state=read_object(given, "state"),
        dependencies=read_object(given, "forwardedProps"),
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
        message = check_value(messages[index], dict, at)
        role = message.get("role")
        if role == "tool":
            is_last = False
            results.append(_read_result(message, at))
        elif role == "user":
            text = read_text(message.get("content"), f"{at}.content") if is_last else None
            return text, results[::-1]
        elif role not in _SKIPPED_ROLES:
            raise ValidationFailed(f"{at}.role must be a role of AG-UI")
        elif role == "assistant":
            is_last = False
    return None, results[::-1]


def _read_result(message: dict[str, Any], at: str) -> ToolResult:
    error = message.get("error")
    return ToolResult(
        check_value(message.get("toolCallId"), str, f"{at}.toolCallId"),
        read_text(message.get("content"), f"{at}.content"),
        None if error is None else check_value(error, str, f"{at}.error"),
    )


def _read_answer(entry: object, at: str) -> PageAnswer:
    given = check_value(entry, dict, at)
    status: Literal["resolved", "cancelled"] | Any = given.get("status")
    if status not in ("resolved", "cancelled"):
        raise ValidationFailed(f"{at}.status must be resolved or cancelled")
    metadata = check_value(given.get("metadata") or {}, dict, f"{at}.metadata")
    return PageAnswer(
        at,
        check_value(given.get("interruptId"), str, f"{at}.interruptId"),
        given.get("payload"),
        is_cancelled=status == "cancelled",
        arguments_hash=metadata.get("argumentsHash"),
    )


def _read_context(entries: Sequence[Any]) -> list[EarlierMessage]:
    lines = []
    for index, entry in enumerate(entries):
        at = f"context[{index}]"
        given = check_value(entry, dict, at)
        name = check_value(given.get("description"), str, f"{at}.description")
        lines.append(f"{name}: {check_value(given.get('value'), str, f'{at}.value')}")
    text = "\n".join(["Context of the page of the user:", *lines])
    return [EarlierMessage("user", text)] if lines else []


EVENTS = "text/event-stream"
"""The media type of event streams."""


class AguiExchange(PageExchange[AguiRequest]):
    """One request of AG-UI."""

    _is_read = False

    def read_request(self, body: object) -> AguiRequest:
        given = read_input(body)
        self._is_read = True
        return given

    async def respond(self) -> Response:
        """Respond as `PageExchange`; with `RUN_ERROR` for a refused run if only events are taken.

        Clients of AG-UI accept nothing else, and show the error of an event to their user.
        """
        try:
            return await super().respond()
        except AgentctlError as error:
            if not self._is_read or self.call.headers.getlist("Accept") != [EVENTS]:
                raise
            refusal = {"type": "RUN_ERROR", "message": error.detail, "code": error.error_code}
            headers = {**error.headers(), "Cache-Control": "no-store"}
            return Response(self._encode([refusal]), 200, headers, EVENTS)

    async def start(self, given: AguiRequest, key: str | None) -> Portions:
        """Start a run, and show the state of the page to a model without code, which reads it."""
        settings = self.call.caller.app_state.settings
        models = [("agent", agent.id) for agent in settings.agents if not agent.object]
        models += [("team", team.id) for team in settings.teams]
        if (self.kind, self.component_id) in models:
            given = replace(given, context=[*given.context, *given.describe_state()])
        return await super().start(given, key)

    def build_stream(
        self, given: AguiRequest, resumed: ResumedRun | None, after: set[str]
    ) -> AguiStream:
        return AguiStream(given.thread_id, given.run_id, attributes=given.has_version, after=after)


def build_face() -> PageFace:
    return PageFace(PREFIX, ROUTES, AguiExchange)
