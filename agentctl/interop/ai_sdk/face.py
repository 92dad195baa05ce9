"""The requests below `/ai` (docs/ai-sdk.md).

Their body is that of `DefaultChatTransport` of the AI SDK.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from starlette.responses import Response

from agentctl.errors import Conflict, NotFound, ValidationFailed
from agentctl.interface.requests import CancelRequest, RetryRequest, StreamEvent
from agentctl.interface.requests.approvals import MAXIMUM_DECISIONS
from agentctl.interop.ai_sdk.settings import PREFIX, ROUTES
from agentctl.interop.pages.exchange import PageExchange, PageFace, Portions
from agentctl.interop.pages.request import (
    MAXIMUM_MESSAGES,
    AskedApproval,
    PageAnswer,
    PageRequest,
    ResumedRun,
    ToolResult,
    build_call_id,
    build_question,
    check_value,
    read_list,
    read_object,
    read_text,
    read_thread_id,
    read_tools,
)
from agentctl.interop.pages.stream import (
    PageEvent,
    PagePart,
    PageStream,
    TextEvents,
    describe_failure,
)
from agentctl.records.approvals import Verb
from agentctl.records.events import TEXT_KINDS, Event, EventKind, parse_event
from agentctl.records.routes import operation_ids
from agentctl.records.runs import RunRow
from agentctl.runs.states import is_final
from agentctl.server.answers import document_response, no_content_response
from agentctl.server.given_files import GivenFile, read_data_url

_OUTPUTS = TEXT_KINDS | {EventKind.TOOL_CALL_STARTED}

_FINISH_REASONS = {"length": "length", "content_filter": "content-filter"}

_DESCRIBED = ("kind", "policy", "run_id", "arguments_hash", "expires_at")
"""The members of an approval that are in its descriptor."""


class AiStream(PageStream):
    """Translates the events of one stream of the AI SDK, which is one message of the assistant.

    Each leg of a run is a step at least: `useChat` looks for unanswered calls in the last step.
    Calls that the server makes are those of the provider, so that a page does not make them. Of
    members only what they ask for is shown, with a part about their status.

    Args:
        message_id: id of the message that continues; None for a new message with the id of the run.
        asked_approvals: approvals that the page has answered. Another person may have decided
            before it.
        answered_call_ids: ids of the calls whose results the request has.
        replays: True if a pause does not end the stream.
    """

    text = TextEvents({"text-start": {}}, "text-delta", ("text-end",))
    thinking = TextEvents({"reasoning-start": {}}, "reasoning-delta", ("reasoning-end",))
    text_id = "id"

    def __init__(
        self,
        thread_id: str,
        *,
        message_id: str | None = None,
        after: Collection[str] = (),
        shown: Collection[str] = (),
        asked_approvals: Collection[AskedApproval] = (),
        answered_call_ids: Collection[str] = (),
        replays: bool = False,
    ) -> None:
        super().__init__(thread_id, after=after, shown=shown)
        self._message_id = message_id
        # The stream of a run adds the approvals that it asks for, and the calls it has answered.
        self._asked = {approval["approval_id"]: approval for approval in asked_approvals}
        self._answered = {*answered_call_ids}
        self._denied_call_ids: set[str] = set()
        self._running_call_ids: set[str] = set()
        # True if the open step has results of calls.
        self._has_results = False
        self.replays = replays

    def start(self, state: dict[str, Any] | None) -> Iterator[PageEvent]:
        names = {"run_id": self.root_id, "session_id": self.thread_id}
        metadata = {"messageMetadata": {"agentctl": names}}
        yield {"type": "start", "messageId": self._message_id or self.root_id, **metadata}
        yield {"type": "start-step"}

    def finish(self, state: dict[str, Any] | None) -> Iterator[PageEvent]:
        assert self._end is not None
        yield {"type": "finish-step"}
        yield self._end

    def read(self, stream_event: StreamEvent) -> Iterator[PageEvent]:
        if self.replays and self.is_over:
            event = parse_event(stream_event.name, stream_event.data, stream_event.seq)
            if event.kind is EventKind.CONTINUED and event.run_id == self.root_id:
                self._end = None
                self._parts.clear()
                self._closed.clear()
                yield from self._begin_step()

        yield from super().read(stream_event)

    def _begin_step(self) -> Iterator[PageEvent]:
        self._has_results = False
        yield {"type": "finish-step"}
        yield {"type": "start-step"}

    def _translate(self, part: PagePart, event: Event, seq: int) -> Iterator[PageEvent]:
        # What the model writes after the results of all calls is its next step.
        if event.kind in _OUTPUTS and self._has_results and not self._running_call_ids:
            yield from self._close_text(part)
            yield from self._begin_step()
        yield from super()._translate(part, event, seq)

    def _shows(self, event: Event) -> bool:
        if event.run_id == self.root_id or event.kind is EventKind.CONTINUED:
            return True
        is_result = event.kind is EventKind.TOOL_CALL_COMPLETED
        return is_result and build_call_id(event.run_id, event.call_id) in self._shown

    def _open_member(self, part: PagePart, event: Event) -> PageEvent:
        return self._build_data("member", part.run_id, {"name": part.name, "status": "RUNNING"})

    def _close_member(self, part: PagePart, event: Event) -> Iterator[PageEvent]:
        status = "PAUSED" if event.kind is EventKind.PAUSED else event.end_status
        yield self._build_data("member", part.run_id, {"name": part.name, "status": status})

    def _build_data(self, name: str, part_id: str, data: PageEvent) -> PageEvent:
        """Return a part that replaces an earlier one of this name and id."""
        return {"type": f"data-agentctl-{name}", "id": part_id, "data": data}

    def _build_note(self, name: str, value: PageEvent) -> PageEvent:
        return self._build_data(name, self.root_id, value)

    def _build_step(self, name: str, *, starts: bool) -> PageEvent:
        status = "RUNNING" if starts else "COMPLETED"
        return self._build_data("step", name, {"name": name, "status": status})

    def _build_call(
        self, part: PagePart, call_id: str, name: str, arguments: object
    ) -> Iterator[PageEvent]:
        self._running_call_ids.add(call_id)
        yield from self._build_input(call_id, name, arguments or {}, by_server=True)

    def _build_input(
        self, call_id: str, name: str, arguments: object, *, by_server: bool
    ) -> Iterator[PageEvent]:
        call: PageEvent = {"toolCallId": call_id, "toolName": name}
        if by_server:
            call |= {"dynamic": True, "providerExecuted": True}
        yield {"type": "tool-input-start", **call}
        yield {"type": "tool-input-available", **call, "input": arguments}

    def _build_result(self, call_id: str, tool: Mapping[str, Any]) -> PageEvent:
        self._running_call_ids.discard(call_id)
        self._has_results = True
        call = {"toolCallId": call_id}
        result = str(tool.get("result") or "")

        if call_id in self._denied_call_ids:
            return {"type": "tool-output-denied", **call}
        if tool.get("tool_call_error"):
            return {"type": "tool-output-error", **call, "errorText": result}
        return {"type": "tool-output-available", **call, "output": result}

    def _ask(self, part: PagePart, approval: AskedApproval) -> Iterator[PageEvent]:
        call_id = build_call_id(approval["run_id"], approval["tool_call_id"])
        name = approval["tool_name"]
        arguments = approval["arguments"]

        if approval["kind"] in ("approval", "outcome"):
            yield from self._show_call(part, call_id, name, arguments)
            yield {
                "type": "tool-approval-request",
                "approvalId": approval["approval_id"],
                "toolCallId": call_id,
                "reason": build_question(approval),
                "approvalDescriptor": {member: approval[member] for member in _DESCRIBED},
            }

        elif call_id not in self._shown:
            self._shown.add(call_id)
            yield from self._close_text(part)
            if approval["kind"] == "input":
                question = {"question": build_question(approval), "schema": approval["schema"]}
                arguments = {**arguments, **question}
            yield from self._build_input(call_id, name, arguments, by_server=False)

    def _continue(self, event: Event) -> Iterator[PageEvent]:
        """Yield the decisions about approvals that the page knows."""
        for decision in event.data.get("approvals") or ():
            call_id = build_call_id(event.run_id, decision["tool_call_id"])
            is_known = self._asked.pop(decision["approval_id"], None) is not None
            if is_known and call_id in self._shown:
                yield from self._build_decision(decision, call_id)

    def _build_decision(self, decision: Mapping[str, Any], call_id: str) -> Iterator[PageEvent]:
        """Yield the decision about an approval: a result for a question, a response for a call.

        The result of an external call is not shown: the page has sent it, or another client.
        """
        status = decision["status"]
        is_approved = status not in ("rejected", "expired", "cancelled")

        if decision["kind"] == "input":
            if call_id in self._answered:
                return
            if is_approved:
                yield {"type": "tool-output-available", "output": status, "toolCallId": call_id}
            else:
                yield {"type": "tool-output-error", "errorText": status, "toolCallId": call_id}

        elif decision["kind"] != "external":
            if not is_approved:
                self._denied_call_ids.add(call_id)
            response: PageEvent = {
                "type": "tool-approval-response",
                "approvalId": decision["approval_id"],
                "approved": is_approved,
            }
            if decision["note"]:
                response["reason"] = decision["note"]
            yield response

    def _build_failure(self, message: str, code: str) -> PageEvent:
        return {"type": "error", "errorText": f"{message} ({code})"}

    def _build_pause(self) -> PageEvent:
        return {"type": "finish", "finishReason": "tool-calls"}

    def _build_end(self, event: Event) -> PageEvent:
        message, code = describe_failure(event)
        if event.end_status == "CANCELLED":
            return {"type": "abort", "reason": message}
        if event.end_status != "COMPLETED":
            return self._build_failure(message, code)
        reason = _FINISH_REASONS.get(event.data.get("finish_reason") or "", "stop")
        usage = {"agentctl": {"usage": event.data.get("metrics")}}
        return {"type": "finish", "finishReason": reason, "messageMetadata": usage}


MAXIMUM_PARTS = 2_048
"""Maximum number of parts of the newest message of a request."""

PlacedPart = tuple[str, dict[str, Any]]
"""The place of a part in the body, for errors, and the part."""

_RESULTS = ("output-available", "output-error")

_OUTCOMES: dict[bool, Verb] = {True: "retry", False: "fail"}
"""The decisions about a call in doubt: a page can only approve or deny."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AiRequest(PageRequest):
    """A request."""

    message_id: str | None
    """Id of the message of the assistant that continues; None for a new message."""

    shown: frozenset[str]
    """Ids of the tool calls of that message."""

    regenerates: bool
    """True if the newest answer is to be replaced by another one."""


def read_input(body: object) -> AiRequest:
    """Return a request from its parsed body; ValidationFailed for a field that is not valid."""
    values = check_value(body, dict, "The body")

    chat_id = read_thread_id(values, "id")
    trigger = values.get("trigger", "submit-message")
    if trigger not in ("submit-message", "regenerate-message"):
        raise ValidationFailed("trigger must be submit-message or regenerate-message")

    messages = read_list(values, "messages", MAXIMUM_MESSAGES)
    at = f"messages[{len(messages) - 1}]"
    newest = check_value(messages[-1], dict, at) if messages else {}

    is_user = newest.get("role") == "user"
    regenerates = trigger == "regenerate-message"
    # Answers end with a message of the assistant, which a page cannot regenerate.
    if not is_user and (regenerates or newest.get("role") != "assistant"):
        raise ValidationFailed("messages must end with a message of the user, or with answers")

    parts: list[PlacedPart] = []
    for index, part in enumerate(read_list(newest, "parts", MAXIMUM_PARTS)):
        place = f"{at}.parts[{index}]"
        parts.append((place, check_value(part, dict, place)))

    calls = {} if is_user else _find_calls(parts)

    tools_by_name = check_value(values.get("tools") or {}, dict, "tools")
    tools = [
        {**check_value(tool, dict, f"tools.{name}"), "name": name}
        for name, tool in tools_by_name.items()
    ]

    ai_request = AiRequest(
        thread_id=chat_id,
        message=_read_message(parts, at) if is_user else None,
        files=_read_files(parts) if is_user else (),
        results=_read_results(calls),
        answers=[
            _read_answer(part, place)
            for place, part in calls.values()
            if part.get("state") == "approval-responded"
        ],
        tools=read_tools(tools),
        dependencies=read_object(values, "dependencies"),
        message_id=None if is_user else check_value(newest.get("id"), str, f"{at}.id"),
        shown=frozenset(calls),
        regenerates=regenerates,
    )

    if ai_request.message is None and not ai_request.continues:
        raise ValidationFailed(f"{at} has no answer to a tool approval and no result of a tool")

    if len(ai_request.answers) > MAXIMUM_DECISIONS:
        raise ValidationFailed(f"{at} must have at most {MAXIMUM_DECISIONS} answers to approvals")
    return ai_request


def _read_message(parts: Sequence[PlacedPart], at: str) -> str:
    """Return the text of a message of the user; parts with data are for the page itself."""
    text_parts = [
        part for _, part in parts if not str(part.get("type")).startswith(("data-", "file"))
    ]
    return read_text(text_parts, f"{at}.parts")


def _read_files(parts: Sequence[PlacedPart]) -> list[GivenFile]:
    files: list[GivenFile] = []
    for place, part in parts:
        if part.get("type") == "file":
            url = check_value(part.get("url"), str, f"{place}.url")
            name = check_value(part.get("filename") or "", str, f"{place}.filename")
            files.append(read_data_url(place, url, name))
    return files


def _find_calls(parts: Sequence[PlacedPart]) -> dict[str, PlacedPart]:
    """Return the tool calls of a message of the assistant by their ids."""
    calls: dict[str, PlacedPart] = {}
    for place, part in parts:
        if str(part.get("type")).startswith(("tool-", "dynamic-tool")):
            call_id = check_value(part.get("toolCallId"), str, f"{place}.toolCallId")
            calls[call_id] = (place, part)
    return calls


def _read_results(calls: Mapping[str, PlacedPart]) -> list[ToolResult]:
    """Return the results that the page has of the calls it makes, not those of the server."""
    results: list[ToolResult] = []
    for call_id, (place, part) in calls.items():
        if part.get("state") not in _RESULTS or part.get("providerExecuted"):
            continue
        error = None
        if part["state"] == "output-error":
            error = check_value(part.get("errorText"), str, f"{place}.errorText")
        results.append(ToolResult(call_id, part.get("output"), error))
    return results


def _read_answer(part: Mapping[str, Any], at: str) -> PageAnswer:
    """Return the answer of the page to an approval.

    Its payload has the values for an approval and for a call in doubt, so that it fits either.
    """
    approval = check_value(part.get("approval"), dict, f"{at}.approval")
    approved = approval.get("approved")
    note = approval.get("reason")
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
        self, page_request: AiRequest, resumed: ResumedRun | None, after: set[str]
    ) -> AiStream:
        return AiStream(
            page_request.thread_id,
            message_id=page_request.message_id,
            after=after,
            shown=page_request.shown,
            asked_approvals=() if resumed is None else resumed.answered_approvals,
            answered_call_ids=[result.call_id for result in page_request.results],
        )

    async def handle(self) -> Response:
        if self.verb == "run":
            return await super().handle()

        run = await self._find_newest(self.path["chat_id"])
        if run is None or is_final(run.status):
            return no_content_response()

        if self.verb == "resume":
            return await self._resume(run)
        return await self._stop(run)

    async def start(self, page_request: AiRequest, key: str | None) -> Portions:
        """Return the events of a new run, which is a retry of the newest one to regenerate it."""
        if not page_request.regenerates:
            return await super().start(page_request, key)

        self.operation = operation_ids(self.kind).retry_run

        run = await self._find_newest(page_request.thread_id)
        if run is None:
            raise NotFound("The chat has no answer that could be regenerated")

        # The page may name an older answer. The summary of a run has the beginning of its input.
        if run.input != (page_request.message or "")[: len(run.input)]:
            raise Conflict("Only the newest answer of a chat can be regenerated")

        if page_request.tools:
            raise ValidationFailed("tools cannot be given to an answer that is regenerated")

        request = RetryRequest(dependencies=page_request.dependencies, idempotency_key=key)
        return self.operations.runs.stream_retry_portions(
            self.kind, self.component_id, run.run_id, request
        )

    async def _find_newest(self, chat_id: str) -> RunRow | None:
        return await self.operations.conversations.find_newest_run(
            self.kind, self.component_id, chat_id
        )

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
        document = await self.operations.runs.cancel(
            self.kind, self.component_id, run.run_id, request
        )
        return document_response(document)


def build_face() -> PageFace:
    return PageFace(PREFIX, ROUTES, AiExchange)
