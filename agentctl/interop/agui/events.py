"""The events of a run as the events of AG-UI (docs/agui.md "Events").

A stream of AG-UI is one run of the protocol: a new run, or the next leg of a paused one. Its
client refuses a stream in which something is open at the end, or opened twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import orjson

from agentctl.interface.requests import StreamEvent
from agentctl.interop.agui.interrupts import Asked, build_call_id, build_interrupt, is_interrupt
from agentctl.light_dataclass import dataclass
from agentctl.records.events import Event, EventKind, parse_event
from agentctl.records.items import DELEGATIONS
from agentctl.records.kinds import find_component

PROTOCOL_VERSION = "1.0"
"""The version of AG-UI whose events these are."""

AguiEvent = dict[str, Any]

_TEXTS: dict[EventKind, tuple[dict[str, AguiEvent], str, tuple[str, ...]]] = {
    EventKind.CONTENT: (
        {"TEXT_MESSAGE_START": {"role": "assistant"}},
        "TEXT_MESSAGE_CONTENT",
        ("TEXT_MESSAGE_END",),
    ),
    EventKind.THINKING: (
        {"REASONING_START": {}, "REASONING_MESSAGE_START": {"role": "reasoning"}},
        "REASONING_MESSAGE_CONTENT",
        ("REASONING_MESSAGE_END", "REASONING_END"),
    ),
}
"""The events that open a text, with their members, add to it, and close it."""


_NOTES = {
    EventKind.PROGRESS: ("agentctl.progress", ("text", "fraction")),
    EventKind.QUEUED: ("agentctl.queued", ("queue_position",)),
    EventKind.COMPACTED: ("agentctl.compacted", ("omissions", "estimated_tokens", "window")),
}
"""Events that are no part of the protocol: name and members."""

_USAGE = (
    ("inputTokens", "input_tokens"), ("outputTokens", "output_tokens"),
    ("totalTokens", "total_tokens"),
)  # fmt: skip


@dataclass(slots=True)
class _Part:
    """A run in the stream: the one of the thread, or that of a member or step.

    Attributes:
        open_text: kind and id of the text that is open; thinking is one, too.
        caller_id: id of the last text, which holds the tool calls that follow it.
        has_text: True if a part of its text was sent.
        steps: names of its open steps.
    """

    run_id: str
    name: str
    open_text: tuple[EventKind, str] | None = None
    caller_id: str | None = None
    has_text: bool = False
    steps: list[str] = field(default_factory=list)


class AguiStream:
    """Translates the events of one stream.

    Args:
        thread_id, run_id: as the page has named them.
        attributes: True if the page knows the events of subagents, which came with version 1.0;
            otherwise a member is a step, and its work is not shown.
        after: ids of approvals: events up to the pause that has them are left out.

    Attributes:
        root_id: the run of the thread; None before its first event.
    """

    def __init__(
        self, thread_id: str, run_id: str, *, attributes: bool, after: frozenset[str] = frozenset()
    ) -> None:
        self.thread_id = thread_id
        self._name = {"threadId": thread_id, "runId": run_id}
        self._attributes = attributes
        self._after = after
        self._skips = bool(after)
        self._closed: set[str] = set()
        self._parts: dict[str, _Part] = {}
        self._asked: dict[str, Asked] = {}
        self._shown: set[str] = set()
        self._answered: set[str] = set()
        self._state: dict[str, Any] | None = None
        self._end: AguiEvent | None = None
        self.root_id: str | None = None

    @property
    def is_over(self) -> bool:
        return self._end is not None

    def start(self, root_id: str, state: dict[str, Any] | None) -> Iterator[AguiEvent]:
        """Yield the first events; `state` is None if the caller may not read it."""
        self.root_id, self._state = root_id, state
        names = {"run_id": root_id, "session_id": self.thread_id}
        yield {
            "type": "RUN_STARTED",
            **self._name,
            "protocolVersion": PROTOCOL_VERSION,
            "metadata": {"agentctl": names},
        }
        if state is not None:
            yield {"type": "STATE_SNAPSHOT", "snapshot": state}

    def read(self, sent: StreamEvent) -> Iterator[AguiEvent]:
        """Yield the events for one of a run, without the last one (`finish`)."""
        event = parse_event(sent.name, sent.data, sent.seq)
        if event.kind is None or self.is_over:
            return
        is_root = event.run_id == self.root_id
        if self._skips and not (is_root and event.end_status):
            if event.kind is EventKind.PAUSED:
                self._after -= {asked["approval_id"] for asked in event.data.get("approvals", ())}
                # Members pause before their root run.
                self._skips = bool(self._after) or not is_root
            return
        if event.run_id in self._closed:
            return
        if is_root:
            part = self._parts.setdefault(event.run_id, _Part(event.run_id, ""))
        else:
            part, opening = self._find_member(event)
            yield from opening
        if is_root or self._attributes:
            for translated in self._translate(part, event, sent.seq):
                yield self._attribute(part, translated)
        if event.kind is EventKind.PAUSED:
            yield from self._pause(part, event)
        if event.kind is EventKind.PAUSED or event.end_status is not None:
            yield from self._close(part, event)

    def finish(self, state: dict[str, Any] | None) -> Iterator[AguiEvent]:
        """Yield the change of the state of the session, and the last event of the stream."""
        assert self._end is not None
        if state is not None and self._state is not None:
            delta = build_patch(self._state, state)
            if delta:
                yield {"type": "STATE_DELTA", "delta": delta}
        yield self._end

    def abort(self) -> Iterator[AguiEvent]:
        """Yield the end of a stream whose run goes on, or is gone."""
        for part in [*self._parts.values()]:
            for event in self._close_text(part):
                yield self._attribute(part, event)
        self._end = {
            "type": "RUN_ERROR",
            "message": "The stream ended before the run",
            "code": "UNAVAILABLE",
        }
        yield self._end

    def wait(self, asked: Sequence[Asked]) -> None:
        """End the stream of a run that still waits, with what it waits for."""
        self._asked = {each["approval_id"]: each for each in asked}
        self._end = self._build_pause()

    def _attribute(self, part: _Part, event: AguiEvent) -> AguiEvent:
        if part.run_id == self.root_id or not self._attributes:
            return event
        return {**event, "subagentRunId": part.run_id}

    def _find_member(self, event: Event) -> tuple[_Part, list[AguiEvent]]:
        """Return the run of a member or step, and the events that open it."""
        part = self._parts.get(event.run_id)
        if part is not None:
            return part, []
        component = find_component(event.data)
        name = str(event.component_name if component is None else component[1])
        if not self._attributes:
            name = f"{name} ({event.run_id})"
        part = self._parts[event.run_id] = _Part(event.run_id, name)
        if not self._attributes:
            return part, [{"type": "STEP_STARTED", "stepName": name}]
        opening = {"type": "SUBAGENT_STARTED", "subagentRunId": part.run_id, "name": name}
        parent = event.data.get("parent_run_id")
        if parent != self.root_id and parent in self._parts:
            opening["parentSubagentRunId"] = parent
        return part, [opening]

    def _translate(self, part: _Part, event: Event, seq: int) -> Iterator[AguiEvent]:
        match event.kind:
            case EventKind.CONTENT | EventKind.THINKING:
                yield from self._add_text(part, event.kind, event.text, seq)
            case EventKind.TOOL_CALL_STARTED | EventKind.TOOL_CALL_COMPLETED:
                yield from self._add_call(part, event)
            case EventKind.PROGRESS | EventKind.QUEUED | EventKind.COMPACTED:
                name, members = _NOTES[event.kind]
                value = {member: event.data.get(member) for member in members}
                yield {"type": "CUSTOM", "name": name, "value": value}
            case EventKind.STEP_STARTED | EventKind.STEP_COMPLETED:
                yield from self._change_step(part, event)
            case EventKind.CONTINUED:
                for asked in event.data.get("approvals") or ():
                    call_id = build_call_id(event.run_id, asked["tool_call_id"])
                    self._shown.add(call_id)
                    if not is_interrupt(asked):
                        self._answered.add(call_id)
                part.has_text = bool(event.data.get("content"))
            case EventKind.COMPLETED if not part.has_text:
                text = str(event.data.get("content") or "")
                yield from self._add_text(part, EventKind.CONTENT, text, seq)

    def _change_step(self, part: _Part, event: Event) -> Iterator[AguiEvent]:
        """Yield the start or the end of a step; clients know steps by name, so one is open once."""
        yield from self._close_text(part)
        name, starts = str(event.data.get("step_name")), event.kind is EventKind.STEP_STARTED
        if starts and name not in part.steps:
            part.steps.append(name)
            yield {"type": "STEP_STARTED", "stepName": name}
        elif not starts and name in part.steps:
            part.steps.remove(name)
            yield {"type": "STEP_FINISHED", "stepName": name}

    def _add_text(self, part: _Part, kind: EventKind, text: str, seq: int) -> Iterator[AguiEvent]:
        if not text:
            return
        opening, content, _ = _TEXTS[kind]
        if part.open_text is None or part.open_text[0] is not kind:
            yield from self._close_text(part)
            part.open_text = kind, f"{part.run_id}:{seq}"
            if kind is EventKind.CONTENT:
                part.caller_id = part.open_text[1]
            for name, members in opening.items():
                yield {"type": name, "messageId": part.open_text[1], **members}
        part.has_text = part.has_text or kind is EventKind.CONTENT
        yield {"type": content, "messageId": part.open_text[1], "delta": text}

    def _add_call(self, part: _Part, event: Event) -> Iterator[AguiEvent]:
        tool = event.tool
        if tool.get("tool_name") in DELEGATIONS:
            return  # the member has its place
        call_id = build_call_id(part.run_id, event.call_id)
        yield from self._show_call(part, call_id, tool.get("tool_name"), tool.get("tool_args"))
        # The page has the result of its tool: a second message would be a copy.
        if event.kind is EventKind.TOOL_CALL_STARTED or call_id in self._answered:
            return
        part.caller_id = None
        result: AguiEvent = {
            "type": "TOOL_CALL_RESULT",
            "messageId": f"{call_id}:result",
            "toolCallId": call_id,
            "content": str(tool.get("result") or ""),
            "role": "tool",
        }
        if tool.get("tool_call_error"):
            result["metadata"] = {"agentctl": {"error": True}}
        yield result

    def _show_call(
        self, part: _Part, call_id: str, name: object, arguments: object
    ) -> Iterator[AguiEvent]:
        """Yield the events of a call that was not shown yet: in this leg or an earlier one."""
        if call_id in self._shown:
            return
        self._shown.add(call_id)
        yield from self._close_text(part)
        start: AguiEvent = {
            "type": "TOOL_CALL_START",
            "toolCallId": call_id,
            "toolCallName": str(name),
        }
        if part.caller_id is not None:
            start["parentMessageId"] = part.caller_id
        yield start
        text = arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode()
        yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": text}
        yield {"type": "TOOL_CALL_END", "toolCallId": call_id}

    def _pause(self, part: _Part, event: Event) -> Iterator[AguiEvent]:
        """Yield the calls that a run waits for; they are not made yet."""
        for approval in event.data.get("approvals") or ():
            asked = {"run_id": event.run_id, "expires_at": None, **approval}
            self._asked.setdefault(asked["approval_id"], asked)
            if asked["kind"] == "input":
                continue
            call_id = build_call_id(event.run_id, asked["tool_call_id"])
            for shown in self._show_call(part, call_id, asked["tool_name"], asked["arguments"]):
                yield self._attribute(part, shown)

    def _close(self, part: _Part, event: Event) -> Iterator[AguiEvent]:
        """Yield the end of a run of a member; at the end of the root close everything."""
        if part.run_id != self.root_id:
            del self._parts[part.run_id]
            self._closed.add(part.run_id)
            yield from self._close_part(part, event)
            return
        # Members without an end, the innermost first.
        for member in [*self._parts.values()][::-1]:
            if member is not part:
                yield from self._close_part(member, event)
        yield from self._close_text(part)
        for name in part.steps:
            yield {"type": "STEP_FINISHED", "stepName": name}
        self._end = self._build_end(event)

    def _close_part(self, part: _Part, event: Event) -> Iterator[AguiEvent]:
        if not self._attributes:
            yield {"type": "STEP_FINISHED", "stepName": part.name}
            return
        for closing in self._close_text(part):
            yield self._attribute(part, closing)
        for name in part.steps:
            yield self._attribute(part, {"type": "STEP_FINISHED", "stepName": name})
        named = {"subagentRunId": part.run_id}
        if event.kind is EventKind.PAUSED:
            asked = [
                each["approval_id"]
                for each in self._asked.values()
                if each["run_id"] == part.run_id and is_interrupt(each)
            ]
            outcome = {"type": "suspended", "interruptIds": asked}
            yield {"type": "SUBAGENT_FINISHED", **named, "outcome": outcome}
        elif event.end_status == "COMPLETED":
            yield {"type": "SUBAGENT_FINISHED", **named}
        else:
            yield {"type": "SUBAGENT_ERROR", **named, **_describe_failure(event)}

    def _close_text(self, part: _Part) -> Iterator[AguiEvent]:
        if part.open_text is not None:
            kind, text_id = part.open_text
            part.open_text = None
            for name in _TEXTS[kind][2]:
                yield {"type": name, "messageId": text_id}

    def _build_end(self, event: Event) -> AguiEvent:
        if event.kind is EventKind.PAUSED:
            return self._build_pause()
        finished = {"type": "RUN_FINISHED", **self._name}
        if event.end_status == "COMPLETED":
            metrics = event.data.get("metrics") or {}
            usage = {name: metrics[key] for name, key in _USAGE if metrics.get(key) is not None}
            outcome = {"type": "success"}
            return {**finished, "outcome": outcome, **({"usage": [usage]} if usage else {})}
        failure = _describe_failure(event)
        if event.end_status == "CANCELLED" and self._attributes:
            metadata = {"agentctl": {"reason": event.data.get("reason")}}
            return {**finished, "outcome": {"type": "cancelled"}, "metadata": metadata}
        return {"type": "RUN_ERROR", **failure}

    def _build_pause(self) -> AguiEvent:
        asked = [*self._asked.values()]
        interrupts = []
        for each in filter(is_interrupt, asked):
            interrupt = build_interrupt(each)
            if each["run_id"] != self.root_id and self._attributes:
                interrupt["subagentRunId"] = each["run_id"]
            interrupts.append(interrupt)
        if interrupts:
            outcome: AguiEvent = {"type": "interrupt", "interrupts": interrupts}
        else:
            ids = [build_call_id(each["run_id"], each["tool_call_id"]) for each in asked]
            outcome = {"type": "success", "pendingToolCallIds": ids}
        return {"type": "RUN_FINISHED", **self._name, "outcome": outcome}


def _describe_failure(event: Event) -> AguiEvent:
    """Return message and code of a run that failed or was cancelled."""
    if event.end_status == "CANCELLED":
        reason = event.data.get("reason")
        text = f"The run was cancelled: {reason}" if reason else "The run was cancelled"
        return {"message": text, "code": "CANCELLED"}
    error: Mapping[str, Any] = event.data.get("error") or {}
    return {"message": str(error.get("detail")), "code": str(error.get("code"))}


def build_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[AguiEvent]:
    """Return the change of the top-level keys of a state as JSON Patch (RFC 6902)."""
    patch: list[AguiEvent] = [
        {"op": "remove", "path": _build_pointer(key)} for key in before if key not in after
    ]
    for key, value in after.items():
        if key not in before or before[key] != value:
            verb = "replace" if key in before else "add"
            patch.append({"op": verb, "path": _build_pointer(key), "value": value})
    return patch


def _build_pointer(key: str) -> str:
    return "/" + key.replace("~", "~0").replace("/", "~1")


def encode(events: list[AguiEvent]) -> bytes:
    """Return events as server-sent events."""
    return b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events)
