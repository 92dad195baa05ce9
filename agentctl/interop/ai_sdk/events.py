"""The events of a run as the UI message stream of the AI SDK (docs/ai-sdk.md "Events")."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from agentctl.interface.requests import StreamEvent
from agentctl.interop.pages.decisions import Asked, build_call_id, build_question
from agentctl.interop.pages.stream import (
    PageEvent,
    PagePart,
    PageStream,
    TextEvents,
    describe_failure,
)
from agentctl.records.events import TEXT_KINDS, Event, EventKind, parse_event

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
        message_id: id of the message that goes on; None: that of the run.
        asked: approvals that the page has answered; the decision may be that of another person.
        answered: ids of calls whose results the page has given.
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
        asked: Collection[Asked] = (),
        answered: Collection[str] = (),
        replays: bool = False,
    ) -> None:
        super().__init__(thread_id, after=after, shown=shown)
        self._message_id = message_id
        self._asked = {each["approval_id"]: each for each in asked}
        self._answered = {*answered}
        self._denied: set[str] = set()
        self._running: set[str] = set()
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

    def read(self, sent: StreamEvent) -> Iterator[PageEvent]:
        if self.replays and self.is_over:
            event = parse_event(sent.name, sent.data, sent.seq)
            if event.kind is EventKind.CONTINUED and event.run_id == self.root_id:
                self._end = None
                self._parts.clear()
                self._closed.clear()
                yield from self._begin_step()
        yield from super().read(sent)

    def _begin_step(self) -> Iterator[PageEvent]:
        self._has_results = False
        yield {"type": "finish-step"}
        yield {"type": "start-step"}

    def _translate(self, part: PagePart, event: Event, seq: int) -> Iterator[PageEvent]:
        if event.kind in _OUTPUTS and self._has_results and not self._running:
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
        self._running.add(call_id)
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
        self._running.discard(call_id)
        self._has_results = True
        named = {"toolCallId": call_id}
        result = str(tool.get("result") or "")
        if call_id in self._denied:
            return {"type": "tool-output-denied", **named}
        if tool.get("tool_call_error"):
            return {"type": "tool-output-error", **named, "errorText": result}
        return {"type": "tool-output-available", **named, "output": result}

    def _ask(self, part: PagePart, asked: Asked) -> Iterator[PageEvent]:
        call_id = build_call_id(asked["run_id"], asked["tool_call_id"])
        name, arguments = asked["tool_name"], asked["arguments"]
        if asked["kind"] in ("approval", "outcome"):
            yield from self._show_call(part, call_id, name, arguments)
            yield {
                "type": "tool-approval-request",
                "approvalId": asked["approval_id"],
                "toolCallId": call_id,
                "reason": build_question(asked),
                "approvalDescriptor": {each: asked[each] for each in _DESCRIBED},
            }
        elif call_id not in self._shown:
            self._shown.add(call_id)
            yield from self._close_text(part)
            if asked["kind"] == "input":
                question = {"question": build_question(asked), "schema": asked["schema"]}
                arguments = {**arguments, **question}
            yield from self._build_input(call_id, name, arguments, by_server=False)

    def _continue(self, event: Event) -> Iterator[PageEvent]:
        """Yield the decisions about approvals that the page knows."""
        for decided in event.data.get("approvals") or ():
            call_id = build_call_id(event.run_id, decided["tool_call_id"])
            is_known = self._asked.pop(decided["approval_id"], None) is not None
            if not is_known or call_id not in self._shown:
                continue
            approved = decided["status"] not in ("rejected", "expired", "cancelled")
            if decided["kind"] == "input":
                answer = {"type": "tool-output-available", "output": decided["status"]}
                denial = {"type": "tool-output-error", "errorText": decided["status"]}
                if call_id not in self._answered:
                    yield {**(answer if approved else denial), "toolCallId": call_id}
            elif decided["kind"] != "external":
                if not approved:
                    self._denied.add(call_id)
                yield {
                    "type": "tool-approval-response",
                    "approvalId": decided["approval_id"],
                    "approved": approved,
                    **({"reason": decided["note"]} if decided["note"] else {}),
                }

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
