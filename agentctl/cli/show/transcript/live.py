"""A run that is drawn while it executes, from its events: each part once it is complete.

A part is a block of Markdown (a paragraph, a list, a table, a block of code), a tool call, or a
member. So no cursor has to move, and the same lines can go to a file.
"""

from __future__ import annotations

from typing import cast

from agentctl.cli.io import current_io
from agentctl.cli.show.answer import RunOutput
from agentctl.cli.show.terminal import display_width
from agentctl.cli.show.transcript.draw import Printer, create_console, find_width
from agentctl.cli.show.transcript.markdown import split_blocks
from agentctl.records.events import TEXT_KINDS, Event, EventKind
from agentctl.records.items import Item
from agentctl.records.kinds import ComponentKind, Record
from agentctl.records.run_reader import RunReader
from agentctl.transcripts.model import DrawnCall, DrawnMember, DrawnRun, clean_line, clean_text
from agentctl.transcripts.texts import Look

_TRY_AGAIN = 1.25
"""Growth of a text that has no complete block, after which it is parsed again."""

_SMALL_TEXT = 2_000
"""Characters of a text that is parsed after each new line."""

TAIL = 400
"""Characters at the end of an incomplete block that may be in the draft."""

MARGIN = 3
"""Columns at the right of a draft that stay empty: an echoed `^C` would otherwise wrap there."""


class LiveAnswer:
    """Draws a text that grows, each block of Markdown once it is complete."""

    def __init__(self, printer: Printer, *, indent: int = 0) -> None:
        self._printer = printer
        self._indent = indent
        # Joined once: a long text is not copied for each event.
        self._rest: list[str] = []
        self._length = 0
        self._next_parse = 0
        self._follows_block = False

    def add(self, text: str) -> None:
        """Add a text, and draw the blocks that are complete with it."""
        self._rest.append(text)
        self._length += len(text)
        if "\n" not in text or self._length < self._next_parse:
            return

        complete, rest = split_blocks("".join(self._rest))
        self._rest = [rest]
        self._length = len(rest)
        if complete:
            self._next_parse = 0
            self._draw(complete)
        elif len(rest) > _SMALL_TEXT:
            self._next_parse = int(len(rest) * _TRY_AGAIN)

    def end(self) -> None:
        """Draw the text so far although its last block is not complete."""
        text = "".join(self._rest)
        self._rest = []
        self._length = 0
        self._next_parse = 0
        self._draw(text)

    def end_part(self) -> None:
        """Draw the text so far. Something else than a block follows."""
        self.end()
        self._follows_block = False

    def _draw(self, text: str) -> None:
        if not text.strip():
            return
        if self._follows_block:
            self._printer.print()
        self._printer.print_answer(clean_text(text).strip("\n"), self._indent)
        self._follows_block = True


class LiveTranscript:
    """Draws the events of a run as they arrive.

    Attributes:
        output: the text of the run and its end.
        in_line: False: whole lines are written only.
    """

    in_line = False

    def __init__(
        self, printer: Printer, kind: ComponentKind, run_id: str = "", *, indent: int = 0
    ) -> None:
        self._answer = LiveAnswer(printer, indent=indent)
        self.output = RunOutput(kind, write=self._answer.add, run_id=run_id)
        self._printer = printer
        self._indent = indent
        self._reader = RunReader()

    def take(self, event: Event) -> None:
        """Draw one event."""
        self.output.take(event)
        own = event.run_id == self.output.run_id
        if not (own and event.kind in TEXT_KINDS):  # the output draws the texts of the run itself
            for change in self._reader.apply(event):
                if change.run_id == self.output.run_id and change.position is not None:
                    self._draw_item(self._reader.runs[change.run_id].items[change.position])
        if own and (self.output.end or event.kind is EventKind.TOOL_CALL_STARTED):
            self._answer.end()

    def _draw_item(self, item: Item) -> None:
        """Draw a tool call that has returned or waits, or a member that has ended."""
        if item["type"] == "tool_call":
            if item["status"] in ("done", "failed", "waiting"):
                self._answer.end_part()
                self._printer.print_tool(DrawnCall.of(item), self._indent)
        elif item["type"] in ("member", "step") and item["run_id"] is not None:
            member = self._build_run(item["run_id"])
            if not member.is_live:
                self._answer.end_part()
                self._printer.print_member(DrawnMember.of(item, member), self._indent)

    def _build_run(self, run_id: str) -> DrawnRun:
        run = self._reader.runs[run_id]
        members = {
            str(member_id): self._build_run(str(member_id))
            for item in run.items
            if (member_id := cast(Record, item).get("run_id")) is not None
        }
        record = {**run.record, "stopped_at": run.record.get("finished_at"), "items": run.items}
        return DrawnRun(record, members)

    def conclude(self, record: Record) -> None:
        """Draw the rest of a run whose last event is missing, from its record."""
        self.output.conclude(record)
        self._answer.end()

    def end_line(self) -> None:
        """Do nothing before a note: whole lines are written only."""

    def flush(self) -> None:
        """Draw the text so far although its last block is not complete."""
        self._answer.end()


class ScreenAnswer(LiveAnswer):
    """Draws an answer at a terminal. The end of the incomplete block is the draft of the screen."""

    def __init__(self) -> None:
        self._io = current_io()
        self._lines: list[str] = []
        self._console = create_console(styled=True)
        super().__init__(Printer(self._console, Look(full=True), self._lines.append))

    @property
    def is_partial(self) -> bool:
        """True while a draft is on the screen."""
        return bool(self._io.draft)

    def add(self, text: str) -> None:
        """Add a text, and show the blocks that are complete with it, and the rest as a draft."""
        super().add(text)
        self._update()

    def end(self) -> None:
        """Draw the text so far although its last block is not complete."""
        super().end()
        self._update()

    def _draw(self, text: str) -> None:
        self._console.width = find_width()  # the window may have another size now
        super()._draw(text)

    def _update(self) -> None:
        """Write the new lines and the draft at once: a person never sees one without the other."""
        lines = "".join(self._lines)
        draft = self._format_draft()
        self._lines.clear()
        if lines or draft != self._io.draft:
            self._io.write_above(lines, draft)

    def _format_draft(self) -> str:
        """Return the end of the incomplete block as one line that fits the terminal."""
        text = clean_line("".join(self._rest[-TAIL:])[-TAIL:])
        encoding = self._io.out.encoding or "utf-8"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        room = (self._io.width(self._io.out) or 80) - MARGIN
        width = display_width(text)
        start = 0
        while width > room:
            width -= display_width(text[start])
            start += 1
        return text[start:]
