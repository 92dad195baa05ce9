"""The events of a run as the events of a page.

A stream of a page is a new run, or the next leg of a paused one. The clients of pages refuse a
stream in which a text, call or member is open at the end, or opened twice: `PageStream` keeps the
open ones. A protocol is a subclass with a table of its texts and functions that build its events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from agentctl.interface.requests import StreamEvent
from agentctl.interop.pages.request import Asked, build_call_id
from agentctl.records.events import STREAM_CUT, Event, EventKind, parse_event
from agentctl.records.items import DELEGATIONS
from agentctl.records.kinds import find_component

PageEvent = dict[str, Any]

NOTES = {
    EventKind.PROGRESS: ("progress", ("text", "fraction")),
    EventKind.QUEUED: ("queued", ("queue_position",)),
    EventKind.COMPACTED: ("compacted", ("omissions", "estimated_tokens", "window")),
    EventKind.FILE_SAVED: ("file", ("file",)),
    EventKind.MESSAGE_DELIVERED: ("message", ("message_id", "content")),
}
"""Events that are no part of the protocols: name and members."""


class TextEvents(NamedTuple):
    """The events that open a text, with their members, add to it, and close it."""

    opening: Mapping[str, PageEvent]
    content: str
    closing: tuple[str, ...]


@dataclass(slots=True)
class PagePart:
    """A run in the stream: the one of the conversation, or that of a member or step.

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


class PageStream:
    """Translates the events of one stream.

    Args:
        after: ids of approvals: events up to the pause that has them are left out.
        shown: ids of calls that the page has.

    Attributes:
        text, thinking: their events.
        text_id: the member with the id of either.
        has_state: True if it shows the state of the session.
        replays: True if a pause does not end it: the run may have gone on already.
        root_id: the run of the conversation; empty before its first event.
        version: the version of its component; None if it is not known.
    """

    text: ClassVar[TextEvents]
    thinking: ClassVar[TextEvents]
    text_id: ClassVar[str]
    has_state: ClassVar[bool] = False
    replays: bool = False

    def __init__(
        self, thread_id: str, *, after: Collection[str] = (), shown: Collection[str] = ()
    ) -> None:
        self.thread_id = thread_id
        self.root_id = ""
        self.version: str | None = None
        self._after = {*after}
        self._skips = bool(after)
        self._closed: set[str] = set()
        self._parts: dict[str, PagePart] = {}
        self._asked: dict[str, Asked] = {}
        self._shown = {*shown}
        self._answered: set[str] = set()
        self._end: PageEvent | None = None

    @property
    def is_over(self) -> bool:
        return self._end is not None

    def start(self, state: dict[str, Any] | None) -> Iterator[PageEvent]:
        """Yield the first events; `state` is None if the caller may not read it."""
        raise NotImplementedError

    def finish(self, state: dict[str, Any] | None) -> Iterator[PageEvent]:
        """Yield the last events of the stream, for the state of the session at its end."""
        raise NotImplementedError

    def read(self, sent: StreamEvent) -> Iterator[PageEvent]:
        """Yield the events for one of a run, without the last ones (`finish`)."""
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
            part = self._parts.setdefault(event.run_id, PagePart(event.run_id, ""))
        else:
            part, opening = self._find_member(event)
            yield from opening
        if self._shows(event):
            for translated in self._translate(part, event, sent.seq):
                yield self._attribute(part, translated)
        if event.kind is EventKind.PAUSED:
            yield from self._pause(part, event)
        if event.kind is EventKind.PAUSED or event.end_status is not None:
            yield from self._close(part, event)

    def abort(self) -> Iterator[PageEvent]:
        """Yield the end of a stream whose run goes on, or is gone."""
        for part in [*self._parts.values()]:
            for event in self._close_text(part):
                yield self._attribute(part, event)
        self._end = self._build_failure(STREAM_CUT, "UNAVAILABLE")
        yield self._end

    def wait(self, asked: Sequence[Asked]) -> None:
        """End the stream of a run that still waits, with what it waits for."""
        self._asked = {each["approval_id"]: each for each in asked}
        self._end = self._build_pause()

    def _shows(self, event: Event) -> bool:
        """Return True if an event of this run is shown: of a member perhaps only some."""
        raise NotImplementedError

    def _attribute(self, part: PagePart, event: PageEvent) -> PageEvent:
        """Return an event with the member or step that it is about."""
        return event

    def _open_member(self, part: PagePart, event: Event) -> PageEvent:
        raise NotImplementedError

    def _close_member(self, part: PagePart, event: Event) -> Iterator[PageEvent]:
        raise NotImplementedError

    def _build_call(
        self, part: PagePart, call_id: str, name: str, arguments: object
    ) -> Iterator[PageEvent]:
        raise NotImplementedError

    def _build_result(self, call_id: str, tool: Mapping[str, Any]) -> PageEvent:
        raise NotImplementedError

    def _build_note(self, name: str, value: PageEvent) -> PageEvent:
        raise NotImplementedError

    def _build_step(self, name: str, *, starts: bool) -> PageEvent:
        raise NotImplementedError

    def _ask(self, part: PagePart, asked: Asked) -> Iterator[PageEvent]:
        """Yield the events for one thing that a run waits for."""
        raise NotImplementedError

    def _continue(self, event: Event) -> Iterator[PageEvent]:
        """Yield the events for the decisions of a run that goes on."""
        raise NotImplementedError

    def _build_failure(self, message: str, code: str) -> PageEvent:
        raise NotImplementedError

    def _build_pause(self) -> PageEvent:
        raise NotImplementedError

    def _build_end(self, event: Event) -> PageEvent:
        """Return the last event of a run with a final status."""
        raise NotImplementedError

    def _find_member(self, event: Event) -> tuple[PagePart, list[PageEvent]]:
        """Return the run of a member or step, and the events that open it."""
        part = self._parts.get(event.run_id)
        if part is not None:
            return part, []
        component = find_component(event.data)
        name = str(event.component_name if component is None else component[1])
        part = self._parts[event.run_id] = PagePart(event.run_id, name)
        return part, [self._open_member(part, event)]

    def _translate(self, part: PagePart, event: Event, seq: int) -> Iterator[PageEvent]:
        match event.kind:
            case EventKind.CONTENT | EventKind.THINKING:
                yield from self._add_text(part, event.kind, event.text, seq)
            case EventKind.TOOL_CALL_STARTED | EventKind.TOOL_CALL_COMPLETED:
                yield from self._add_call(part, event)
            case kind if kind in NOTES:
                name, members = NOTES[kind]
                yield self._build_note(name, {each: event.data.get(each) for each in members})
            case EventKind.STEP_STARTED | EventKind.STEP_COMPLETED:
                yield from self._change_step(part, event)
            case EventKind.CONTINUED:
                yield from self._continue(event)
                part.has_text = bool(event.data.get("content"))
            case EventKind.COMPLETED if not part.has_text:
                text = str(event.data.get("content") or "")
                yield from self._add_text(part, EventKind.CONTENT, text, seq)

    def _texts(self, kind: EventKind) -> TextEvents:
        return self.thinking if kind is EventKind.THINKING else self.text

    def _change_step(self, part: PagePart, event: Event) -> Iterator[PageEvent]:
        """Yield the start or the end of a step; clients know steps by name, so one is open once."""
        yield from self._close_text(part)
        name = str(event.data.get("step_name"))
        starts = event.kind is EventKind.STEP_STARTED
        if starts and name not in part.steps:
            part.steps.append(name)
            yield self._build_step(name, starts=True)
        elif not starts and name in part.steps:
            part.steps.remove(name)
            yield self._build_step(name, starts=False)

    def _add_text(
        self, part: PagePart, kind: EventKind, text: str, seq: int
    ) -> Iterator[PageEvent]:
        if not text:
            return
        opening, content, _ = self._texts(kind)
        if part.open_text is None or part.open_text[0] is not kind:
            yield from self._close_text(part)
            part.open_text = kind, f"{part.run_id}:{seq}"
            if kind is EventKind.CONTENT:
                part.caller_id = part.open_text[1]
            for name, members in opening.items():
                yield {"type": name, self.text_id: part.open_text[1], **members}
        part.has_text = part.has_text or kind is EventKind.CONTENT
        yield {"type": content, self.text_id: part.open_text[1], "delta": text}

    def _close_text(self, part: PagePart) -> Iterator[PageEvent]:
        if part.open_text is not None:
            kind, text_id = part.open_text
            part.open_text = None
            for name in self._texts(kind).closing:
                yield {"type": name, self.text_id: text_id}

    def _add_call(self, part: PagePart, event: Event) -> Iterator[PageEvent]:
        tool = event.tool
        if tool.get("tool_name") in DELEGATIONS:
            return  # the member has its place
        call_id = build_call_id(part.run_id, event.call_id)
        yield from self._show_call(part, call_id, tool.get("tool_name"), tool.get("tool_args"))
        # The page has the result of its tool: a second one would be a copy.
        if event.kind is EventKind.TOOL_CALL_COMPLETED and call_id not in self._answered:
            part.caller_id = None
            yield self._build_result(call_id, tool)

    def _show_call(
        self, part: PagePart, call_id: str, name: object, arguments: object
    ) -> Iterator[PageEvent]:
        """Yield the events of a call that was not shown yet: in this leg or an earlier one."""
        if call_id not in self._shown:
            self._shown.add(call_id)
            yield from self._close_text(part)
            yield from self._build_call(part, call_id, str(name), arguments)

    def _pause(self, part: PagePart, event: Event) -> Iterator[PageEvent]:
        """Yield the calls that a run waits for, which are not made yet, and its questions."""
        for approval in event.data.get("approvals") or ():
            asked = {"run_id": event.run_id, "expires_at": None, **approval}
            self._asked.setdefault(asked["approval_id"], asked)
            for translated in self._ask(part, asked):
                yield self._attribute(part, translated)

    def _close(self, part: PagePart, event: Event) -> Iterator[PageEvent]:
        """Yield the end of a run of a member; at the end of the root close everything."""
        if part.run_id != self.root_id:
            del self._parts[part.run_id]
            self._closed.add(part.run_id)
            yield from self._close_member(part, event)
            return
        # Members without an end, the innermost first.
        for member in [*self._parts.values()][::-1]:
            if member is not part:
                yield from self._close_member(member, event)
        yield from self._close_part(part)
        is_pause = event.kind is EventKind.PAUSED
        self._end = self._build_pause() if is_pause else self._build_end(event)

    def _close_part(self, part: PagePart) -> Iterator[PageEvent]:
        """Yield the ends of the text and of the steps that are open in a run."""
        for closing in self._close_text(part):
            yield self._attribute(part, closing)
        for name in part.steps:
            yield self._attribute(part, self._build_step(name, starts=False))


def describe_failure(event: Event) -> tuple[str, str]:
    """Return message and code of a run that failed or was cancelled."""
    if event.end_status == "CANCELLED":
        reason = event.data.get("reason")
        return (
            f"The run was cancelled: {reason}" if reason else "The run was cancelled",
            "CANCELLED",
        )
    error: Mapping[str, Any] = event.data.get("error") or {}
    return str(error.get("detail")), str(error.get("code"))
