"""The events of a run: its text on stdout, a line for each other event on stderr.

At a terminal a line about a run without events has the work that it waits for.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from itertools import accumulate
from typing import TYPE_CHECKING

from agentctl.cli.io import current_io
from agentctl.cli.show.answer import RunOutput
from agentctl.cli.show.output import Format, write_json, write_text
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.terminal import display_width, note_dim
from agentctl.records.events import Event, EventKind, find_event_kind, parse_event
from agentctl.records.kinds import ComponentKind, Record

if TYPE_CHECKING:
    from agentctl.cli.show.transcript.live import LiveTranscript, ScreenAnswer
    from agentctl.interface.requests import StreamEvent

TEXT_FORMATS = ("table", "wide", "tsv", "text")
"""Formats that show the text of a run as it arrives."""

MAXIMUM_LINE_WIDTH = 160
"""Columns of a line about a tool: its arguments and results can be very long."""

MAXIMUM_LINE_LENGTH = 400
"""Characters of a member's line that are shown before the line ends."""

MAXIMUM_PARTIAL_LINES = 1_000
"""Maximum number of members with an unfinished line; then the line of the first one ends."""

_QUEUE = "queue"
"""The key of the wait for a turn; no call has this id."""


class EventLines:
    """Writes the events of a run as they arrive.

    The text of members is written line by line with their names, since they can run concurrently.

    Args:
        answer: draws that text; None if it is written as it arrives.
    """

    def __init__(self, output: RunOutput, answer: ScreenAnswer | None = None) -> None:
        self.output = output
        self._answer = answer
        self._partial_lines: dict[str, tuple[str, str]] = {}

    def take(self, event: Event) -> None:
        """Write one event. The first one names the run, unless it is known."""
        if not self.output.run_id:
            self.output.take(event)
            return

        is_own = event.run_id == self.output.run_id
        name = "" if is_own else event.component_name
        if event.kind is EventKind.CONTENT:
            # `output` writes the text of the run itself.
            if not is_own:
                self._write_member_text(event.run_id, name, event.text)
        else:
            if not is_own:
                self._end_member_line(event.run_id)
            elif self._answer is not None and event.kind is EventKind.TOOL_CALL_STARTED:
                self._answer.end_part()

            line = None if is_own and event.is_about_run else describe_event(event)
            if line is not None:
                self._write_line(name, line)

        self.output.take(event)

    @property
    def in_line(self) -> bool:
        """True if the last line on stdout is not complete."""
        return self.output.in_line if self._answer is None else self._answer.is_partial

    def conclude(self, record: Record) -> None:
        """Write the rest of a run whose last event is missing, from its record."""
        self.output.conclude(record)

    def end_line(self) -> None:
        """Write the unfinished lines of members and end the current line, before a note."""
        for run_id in [*self._partial_lines]:
            self._end_member_line(run_id)
        if self._answer is None:
            self.output.end_line()

    def flush(self) -> None:
        """Write everything that has arrived and end the current line."""
        self.end_line()
        self.end_answer()

    def end_answer(self) -> None:
        """Draw the rest of the text, unless it is written as it arrives."""
        if self._answer is not None:
            self._answer.end()

    def _write_member_text(self, run_id: str, name: str, text: str) -> None:
        text = self._partial_lines.pop(run_id, ("", ""))[1] + text
        *lines, rest = text.split("\n")
        for line in lines:
            self._write_line(name, line)
        if len(rest) > MAXIMUM_LINE_LENGTH:
            self._write_line(name, rest)
        elif rest:
            self._partial_lines[run_id] = name, rest
        if len(self._partial_lines) > MAXIMUM_PARTIAL_LINES:
            self._end_member_line(next(iter(self._partial_lines)))

    def _end_member_line(self, run_id: str) -> None:
        name, rest = self._partial_lines.pop(run_id, ("", ""))
        if rest:
            self._write_line(name, rest)

    def _write_line(self, name: str, line: str) -> None:
        in_line = self._answer is None and self.output.in_line  # a note is above a draft
        note_dim(f"  {name}: {line}" if name else f"  {line}", in_line=in_line)


def create_event_lines(
    kind: ComponentKind, form: Format, *, run_id: str = "", whole: bool = True
) -> EventLines:
    """Create what writes the events of a run; at a terminal the text in a table is drawn.

    The arguments are those of `RunOutput`; a format without text drops it.
    """
    io = current_io()
    if form not in TEXT_FORMATS:
        return EventLines(RunOutput(kind, write=None, run_id=run_id, whole=whole))
    if not (form in ("table", "wide") and io.out_is_terminal and io.moves_cursor):
        return EventLines(RunOutput(kind, write=write_text, run_id=run_id, whole=whole))
    from agentctl.cli.show.transcript.live import ScreenAnswer

    answer = ScreenAnswer()
    return EventLines(RunOutput(kind, write=answer.add, run_id=run_id, whole=whole), answer)


def write_event(event: StreamEvent, form: Format, lines: EventLines | LiveTranscript) -> None:
    """Write an event of a stream: its JSON, or what `lines` writes about it."""
    if form == "jsonl":
        write_json(event.data)
    reader = lines if form in TEXT_FORMATS else lines.output
    reader.take(parse_event(event.name, event.data, event.seq))


def describe_event(event: Event) -> str | None:
    """Return the line about an event without text; None for an event that is not shown."""
    line = event.describe()
    if line is None or event.is_about_run:
        return line
    line = " ".join(line.split())
    if len(line) <= MAXIMUM_LINE_WIDTH:
        return line
    widths = accumulate(map(display_width, line))
    kept = sum(width <= MAXIMUM_LINE_WIDTH - len("...") for width in widths)
    return line if kept == len(line) else f"{line[:kept]}..."


async def with_activity(
    events: AsyncIterator[StreamEvent], component: str, in_line: Callable[[], bool]
) -> AsyncGenerator[StreamEvent]:
    """Yield events; while none arrives, show the component, what it waits for and how long.

    Args:
        in_line: returns True while the line with the text has not ended: nothing is shown then.
    """
    # The things that the run waits for, by the ids of calls and `_QUEUE`.
    waits: dict[str, str] = {}
    has_spoken = False
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        while True:
            subject = "the next event" if has_spoken else "the first token"
            if waits:
                subject = ", ".join(dict.fromkeys(waits.values()))
            text = f"{component}: waiting for {subject}"
            try:
                async with contextlib.nullcontext() if in_line() else showing_progress(text):
                    event = await anext(events)
            except StopAsyncIteration:
                return

            kind = find_event_kind(event.name)
            if kind is EventKind.TOOL_CALL_STARTED:
                parsed = parse_event(event.name, event.data, event.seq)
                waits[parsed.call_id] = f"tool {parsed.tool.get('tool_name')}"
            elif kind is EventKind.TOOL_CALL_COMPLETED:
                waits.pop(parse_event(event.name, event.data, event.seq).call_id, None)
            elif kind is EventKind.QUEUED:
                place = parse_event(event.name, event.data, event.seq).data.get("queue_position")
                waits[_QUEUE] = f"its turn, place {place} in the queue of its session"
            elif kind is EventKind.STARTED:
                waits.pop(_QUEUE, None)
            has_spoken = has_spoken or kind in (EventKind.CONTENT, EventKind.TOOL_CALL_STARTED)
            yield event
