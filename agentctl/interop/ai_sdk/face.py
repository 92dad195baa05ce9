"""The requests below `/ai` (docs/ai-sdk.md).

Their body is that of `DefaultChatTransport` of the AI SDK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from starlette.responses import Response

from agentctl.errors import Conflict, NotFound, ValidationFailed
from agentctl.interface.requests import CancelRequest
from agentctl.interface.requests.approvals import MAXIMUM_DECISIONS
from agentctl.interface.requests.repeats import RetryRequest
from agentctl.interop.ai_sdk.events import AiStream
from agentctl.interop.ai_sdk.settings import PREFIX, ROUTES
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
from agentctl.records.approvals import Verb
from agentctl.records.routes import operation_ids
from agentctl.records.runs import RunRow
from agentctl.runs.states import is_final
from agentctl.server.answers import document_response, no_content_response

MAXIMUM_PARTS = 2_048
"""Maximum number of parts of the newest message of a request."""

Placed = tuple[str, dict[str, Any]]
"""A part with its place in the body, for errors."""

_RESULTS = ("output-available", "output-error")

_OUTCOMES: dict[bool, Verb] = {True: "retry", False: "fail"}
"""The decisions about a call in doubt: a page can only approve or deny."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AiRequest(PageRequest):
    """A request.

    Attributes:
        message_id: id of the message of the assistant that goes on; None for a new one.
        shown: ids of the tool calls of that message.
        regenerates: True if the newest answer is to be replaced by another one.
    """

    message_id: str | None
    shown: frozenset[str]
    regenerates: bool


def read_input(body: object) -> AiRequest:
    """Return a request from its parsed body; ValidationFailed for a field that is not valid."""
    given = check_value(body, dict, "The body")
    chat_id = read_thread_id(given, "id")
    trigger = given.get("trigger", "submit-message")
    if trigger not in ("submit-message", "regenerate-message"):
        raise ValidationFailed("trigger must be submit-message or regenerate-message")
    messages = read_list(given, "messages", MAXIMUM_MESSAGES)
    at = f"messages[{len(messages) - 1}]"
    newest = check_value(messages[-1], dict, at) if messages else {}
    is_user, is_new = newest.get("role") == "user", trigger == "regenerate-message"
    if not is_user and (is_new or newest.get("role") != "assistant"):
        raise ValidationFailed("messages must end with a message of the user, or with answers")
    parts = [
        (f"{at}.parts[{index}]", check_value(part, dict, f"{at}.parts[{index}]"))
        for index, part in enumerate(read_list(newest, "parts", MAXIMUM_PARTS))
    ]
    calls = {} if is_user else _find_calls(parts)
    tools = [
        {**check_value(tool, dict, f"tools.{name}"), "name": name}
        for name, tool in check_value(given.get("tools") or {}, dict, "tools").items()
    ]
    found = AiRequest(
        thread_id=chat_id,
        message=_read_message(parts, at) if is_user else None,
        results=[
            _read_result(call_id, part, place)
            for call_id, (place, part) in calls.items()
            # The others are the results of the server itself.
            if part.get("state") in _RESULTS and not part.get("providerExecuted")
        ],
        answers=[
            _read_answer(part, place)
            for place, part in calls.values()
            if part.get("state") == "approval-responded"
        ],
        tools=read_tools(tools),
        dependencies=read_object(given, "dependencies"),
        message_id=None if is_user else check_value(newest.get("id"), str, f"{at}.id"),
        shown=frozenset(calls),
        regenerates=is_new,
    )
    if found.message is None and not found.continues:
        raise ValidationFailed(f"{at} has no answer to a tool approval and no result of a tool")
    if len(found.answers) > MAXIMUM_DECISIONS:
        raise ValidationFailed(f"{at} must have at most {MAXIMUM_DECISIONS} answers to approvals")
    return found


def _read_message(parts: Sequence[Placed], at: str) -> str:
    """Return the text of a message of the user; parts with data are for the page itself."""
    for place, part in parts:
        if part.get("type") == "file":
            raise ValidationFailed(f"{place} is a file, which is not supported: messages are text")
    return read_text(
        [part for _, part in parts if not str(part.get("type")).startswith("data-")], f"{at}.parts"
    )


def _find_calls(parts: Sequence[Placed]) -> dict[str, Placed]:
    """Return the tool calls of a message of the assistant by their ids."""
    return {
        check_value(part.get("toolCallId"), str, f"{place}.toolCallId"): (place, part)
        for place, part in parts
        if str(part.get("type")).startswith(("tool-", "dynamic-tool"))
    }


def _read_result(call_id: str, part: Mapping[str, Any], at: str) -> ToolResult:
    error = None
    if part["state"] == "output-error":
        error = check_value(part.get("errorText"), str, f"{at}.errorText")
    return ToolResult(call_id, part.get("output"), error)


def _read_answer(part: Mapping[str, Any], at: str) -> PageAnswer:
    approval = check_value(part.get("approval"), dict, f"{at}.approval")
    approved, note = approval.get("approved"), approval.get("reason")
    if not isinstance(approved, bool):
        raise ValidationFailed(f"{at}.approval.approved must be true or false")
    payload = {"approved": approved, "outcome": _OUTCOMES[approved], "note": note}
    return PageAnswer(at, check_value(approval.get("id"), str, f"{at}.approval.id"), payload)


STOP_REASON = "Stopped in the page"


class AiExchange(PageExchange[AiRequest]):
    """One request of the AI SDK."""

    headers: ClassVar = {"x-vercel-ai-ui-message-stream": "v1"}
    ending = b"data: [DONE]\n\n"

    def read_request(self, body: object) -> AiRequest:
        return read_input(body)

    def build_stream(
        self, given: AiRequest, resumed: ResumedRun | None, after: set[str]
    ) -> AiStream:
        return AiStream(
            given.thread_id,
            message_id=given.message_id,
            after=after,
            shown=given.shown,
            asked=() if resumed is None else resumed.named,
            answered=[result.call_id for result in given.results],
        )

    async def handle(self) -> Response:
        if self.verb == "run":
            return await super().handle()
        run = await self._find_newest(self.path["chat_id"])
        if run is None or is_final(run.status):
            return no_content_response()
        return await (self._resume(run) if self.verb == "resume" else self._stop(run))

    async def start(self, given: AiRequest, key: str | None) -> Portions:
        """Return the events of a new run, which is a retry of the newest one to regenerate it."""
        if not given.regenerates:
            return await super().start(given, key)
        self.operation = operation_ids(self.kind).retry_run
        run = await self._find_newest(given.thread_id)
        if run is None:
            raise NotFound("The chat has no answer that could be regenerated")
        if run.input != (given.message or "")[: len(run.input)]:
            raise Conflict("Only the newest answer of a chat can be regenerated")
        if given.tools:
            raise ValidationFailed("tools cannot be given to an answer that is regenerated")
        request = RetryRequest(dependencies=given.dependencies, idempotency_key=key)
        return self.operations.stream_retry_portions(
            self.kind, self.component_id, run.run_id, request
        )

    async def _find_newest(self, chat_id: str) -> RunRow | None:
        return await self.operations.find_newest_run(self.kind, self.component_id, chat_id)

    async def _resume(self, run: RunRow) -> Response:
        """Return the answer that is being written, from its beginning on.

        A page that closes it leaves the run to the request that started it.
        """
        stream = AiStream(run.session_id, replays=True)
        stream.root_id = run.run_id
        portions = await self.resume(run.run_id, run.session_id)
        return self.send(stream, None, self.translate(stream, portions))

    async def _stop(self, run: RunRow) -> Response:
        """Cancel the run of the chat, and return what became of it once it has stopped."""
        request = CancelRequest(run.session_id, reason=STOP_REASON)
        document = await self.operations.cancel_run(
            self.kind, self.component_id, run.run_id, request
        )
        return document_response(document)


def build_face() -> PageFace:
    return PageFace(PREFIX, ROUTES, AiExchange)
