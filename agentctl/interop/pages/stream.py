"""The events of a run as the events of a page.

A stream of a page is a new run, or the next leg of a paused run. The clients of pages refuse a
stream if a text, call or member is open at its end, or is opened twice: `PageStream` knows which
are open. A protocol is a subclass with a table of its texts and functions that build its events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from agentctl.interface.requests import StreamEvent
from agentctl.interop.pages.request import AskedApproval, build_call_id
from agentctl.records.events import STREAM_CUT, Event, EventKind, parse_event
from agentctl.records.items import DELEGATIONS
from agentctl.records.kinds import find_component

PageEvent = dict[str, Any]
"""One event of a protocol, as JSON."""

NOTES = {
    EventKind.PROGRESS: ("progress", ("text", "fraction")),
    EventKind.QUEUED: ("queued", ("queue_position",)),
    EventKind.COMPACTED: ("compacted", ("omissions", "estimated_tokens", "window")),
    EventKind.FILE_SAVED: ("file", ("file",)),
    EventKind.MESSAGE_DELIVERED: ("message", ("message_id", "content")),
}
"""Events that are no part of the protocols: name and members."""


class TextEvents(NamedTuple):
    """The events of a text."""

    opening: Mapping[str, PageEvent]
    """The names of the events that open it, with their members."""

    content: str
    """The name of the events that add to it."""

    closing: tuple[str, ...]
    """The names of the events that close it."""


@dataclass(slots=True)
class PagePart:
    """A run in the stream: the run of the conversation, or the run of a member or step."""

    run_id: str
    name: str

    open_text: tuple[EventKind, str] | None = None
    """Kind and id of the text that is open; thinking is a text, too."""

    caller_id: str | None = None
    """Id of the last text, to which the tool calls after it belong."""

    has_text: bool = False
    """True if a part of its text was sent."""

    steps: list[str] = field(default_factory=list)
    """Names of its open steps."""


class PageStream:
    """Translates the events of one stream.

    Args:
        after: ids of approvals: events up to the pause that has them are left out.
        shown: ids of calls that the page has.
    """

    text: ClassVar[TextEvents]
    """The events of the text of an answer."""

    thinking: ClassVar[TextEvents]
    """The events of the thinking of a model."""

    text_id: ClassVar[str]
    """The member with the id of either."""

    has_state: ClassVar[bool] = False
    """True if the stream shows the state of the session."""

    replays: bool = False
    """True if a pause does not end the stream: the run may have continued already."""

    def __init__(
        self, thread_id: str, *, after: Collection[str] = (), shown: Collection[str] = ()
    ) -> None:
        self.thread_id = thread_id

        self.root_id = ""
        """The run of the conversation; empty before its first event."""

        self.version: str | None = None
        """The version of its component; None if it is not known."""

        # The events are skipped until a pause has had all of these approvals.
        self._after = {*after}
        self._skips = bool(after)

        # The members and steps that have ended, and the runs that are open.
        self._closed: set[str] = set()
        self._parts: dict[str, PagePart] = {}

        # Approvals by id; calls that were shown, and calls whose results the page has.
        self._asked: dict[str, AskedApproval] = {}
        self._shown = {*shown}
        self._answered: set[str] = set()

        # The last event of the stream; None until it is known.
        self._end: PageEvent | None = None

    @property
    def is_over(self) -> bool:
        """True if the last event of the stream is known; `finish` yields it."""
        return self._end is not None

    def start(self, state: dict[str, Any] | None) -> Iterator[PageEvent]:
        """Yield the first events; `state` is None if the caller may not read it."""
        raise NotImplementedError

    def finish(self, state: dict[str, Any] | None) -> Iterator[PageEvent]:
        """Yield the last events of the stream, for the state of the session at its end."""
        raise NotImplementedError

    def read(self, stream_event: StreamEvent) -> Iterator[PageEvent]:
        """Yield the events for an event of a run, without the last events (`finish`)."""
        event = parse_event(stream_event.name, stream_event.data, stream_event.seq)
        if event.kind is None or self.is_over:
            return

        is_root = event.run_id == self.root_id
        if self._skips and not (is_root and event.end_status):
            if event.kind is EventKind.PAUSED:
                approvals = event.data.get("approvals", ())
                self._after -= {approval["approval_id"] for approval in approvals}
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
            for page_event in self._translate(part, event, stream_event.seq):
                yield self._attribute(part, page_event)

        if event.kind is EventKind.PAUSED:
            yield from self._pause(part, event)
        if event.kind is EventKind.PAUSED or event.end_status is not None:
            yield from self._close(part, event)

    def abort(self) -> Iterator[PageEvent]:
        """Yield the end of a stream whose run is still at work, or whose process is gone."""
        for part in [*self._parts.values()]:
            for event in self._close_text(part):
                yield self._attribute(part, event)
        self._end = self._build_failure(STREAM_CUT, "UNAVAILABLE")
        yield self._end

    def wait(self, approvals: Sequence[AskedApproval]) -> None:
        """End the stream of a run that still waits for these approvals."""
        self._asked = {approval["approval_id"]: approval for approval in approvals}
        self._end = self._build_pause()

    def _shows(self, event: Event) -> bool:
        """Return True if an event is shown; a protocol may hide events of members."""
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

    def _ask(self, part: PagePart, approval: AskedApproval) -> Iterator[PageEvent]:
        """Yield the events for one approval that a run waits for."""
        raise NotImplementedError

    def _continue(self, event: Event) -> Iterator[PageEvent]:
        """Yield the events for the decisions of a run that continues."""
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

        # A step of code has no component, only a name.
        name = event.component_name
        component = find_component(event.data)
        if component is not None:
            _, name = component

        part = PagePart(event.run_id, str(name))
        self._parts[event.run_id] = part
        return part, [self._open_member(part, event)]

    def _translate(self, part: PagePart, event: Event, seq: int) -> Iterator[PageEvent]:
        match event.kind:
            case EventKind.CONTENT | EventKind.THINKING:
                yield from self._add_text(part, event.kind, event.text, seq)
            case EventKind.TOOL_CALL_STARTED | EventKind.TOOL_CALL_COMPLETED:
                yield from self._add_call(part, event)
            case kind if kind in NOTES:
                name, members = NOTES[kind]
                yield self._build_note(name, {member: event.data.get(member) for member in members})
            case EventKind.STEP_STARTED | EventKind.STEP_COMPLETED:
                yield from self._change_step(part, event)
            case EventKind.CONTINUED:
                yield from self._continue(event)
                part.has_text = bool(event.data.get("content"))
            case EventKind.COMPLETED if not part.has_text:
                # An answer that came as a whole, without events of its text.
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

        text_events = self._texts(kind)
        if part.open_text is None or part.open_text[0] is not kind:
            yield from self._close_text(part)
            part.open_text = (kind, f"{part.run_id}:{seq}")
            for name, members in text_events.opening.items():
                yield {"type": name, self.text_id: part.open_text[1], **members}

        _, text_id = part.open_text
        if kind is EventKind.CONTENT:
            part.caller_id = text_id
            part.has_text = True
        yield {"type": text_events.content, self.text_id: text_id, "delta": text}

    def _close_text(self, part: PagePart) -> Iterator[PageEvent]:
        if part.open_text is not None:
            kind, text_id = part.open_text
            part.open_text = None
            for name in self._texts(kind).closing:
                yield {"type": name, self.text_id: text_id}

    def _add_call(self, part: PagePart, event: Event) -> Iterator[PageEvent]:
        tool = event.tool
        if tool.get("tool_name") in DELEGATIONS:
            # The run of the member is shown instead.
            return

        call_id = build_call_id(part.run_id, event.call_id)
        yield from self._show_call(part, call_id, tool.get("tool_name"), tool.get("tool_args"))
        # The page has the result of its tool: a second one would be a copy.
        if event.kind is EventKind.TOOL_CALL_COMPLETED and call_id not in self._answered:
            part.caller_id = None
            yield self._build_result(call_id, tool)

    def _show_call(
        self, part: PagePart, call_id: str, name: object, arguments: object
    ) -> Iterator[PageEvent]:
        """Yield the events of a call, unless they were shown in this or an earlier leg."""
        if call_id not in self._shown:
            self._shown.add(call_id)
            yield from self._close_text(part)
            yield from self._build_call(part, call_id, str(name), arguments)

    def _pause(self, part: PagePart, event: Event) -> Iterator[PageEvent]:
        """Yield the calls that a run waits for, which are not made yet, and its questions."""
        for members in event.data.get("approvals") or ():
            approval = {"run_id": event.run_id, "expires_at": None, **members}
            self._asked.setdefault(approval["approval_id"], approval)
            for page_event in self._ask(part, approval):
                yield self._attribute(part, page_event)

    def _close(self, part: PagePart, event: Event) -> Iterator[PageEvent]:
        """Yield the end of a run of a member; at the end of the root close everything."""
        if part.run_id != self.root_id:
            del self._parts[part.run_id]
            self._closed.add(part.run_id)
            yield from self._close_member(part, event)
            return

        # Members without an end, the innermost first.
        for member in reversed(list(self._parts.values())):
            if member is not part:
                yield from self._close_member(member, event)
        yield from self._close_part(part)

        if event.kind is EventKind.PAUSED:
            self._end = self._build_pause()
        else:
            self._end = self._build_end(event)

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
        message = f"The run was cancelled: {reason}" if reason else "The run was cancelled"
        return message, "CANCELLED"

    error: Mapping[str, Any] = event.data.get("error") or {}
    return str(error.get("detail")), str(error.get("code"))
