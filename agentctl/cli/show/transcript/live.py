"""A run that is drawn while it executes, from its events: each part once it is complete.

A part is a block of Markdown (a paragraph, a list, a table, a block of code), a tool call, or a
member. So no cursor has to move, and the same lines can go to a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentctl.cli.show.answer import RunOutput
from agentctl.cli.show.transcript.markdown import split_blocks
from agentctl.cli.show.transcript.model import (
    DELEGATIONS,
    Answer,
    Item,
    Member,
    RunView,
    build_call,
    clean_line,
    clean_text,
)
from agentctl.records.events import Event, EventKind, parse_event
from agentctl.records.kinds import ComponentKind, find_component

if TYPE_CHECKING:
    from agentctl.cli.show.transcript.draw import Printer
    from agentctl.requests import StreamEvent

Data = Mapping[str, Any]

_TRY_AGAIN = 1.25
"""Growth of a text that has no complete block, after which it is parsed again."""

_SMALL_TEXT = 2_000
"""Characters of a text that is parsed after each new line."""


class LiveAnswer:
    """Draws a text that grows, each block of Markdown once it is complete.

    Args:
        printer: draws the blocks.
        indent: columns before each line.
    """

    def __init__(self, printer: Printer, *, indent: int = 0) -> None:
        self._printer = printer
        self._indent = indent
        self._rest: list[str] = []  # joined once: a long text is not copied for each event
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
        self._rest, self._length = [rest], len(rest)
        if complete:
            self._next_parse = 0
            self._draw(complete)
        elif len(rest) > _SMALL_TEXT:
            self._next_parse = int(len(rest) * _TRY_AGAIN)

    def end(self) -> None:
        """Draw the text so far although its last block is not complete."""
        text = "".join(self._rest)
        self._rest, self._length, self._next_parse = [], 0, 0
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


@dataclass(slots=True)
class _Part:
    """The run of a member, as its events have described it so far."""

    record: dict[str, Any]
    items: list[Item] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def end_text(self) -> None:
        """Make the text so far an item."""
        text, self.text = clean_text("".join(self.text)), []
        if text.strip():
            self.items.append(Answer(text))


class LiveRun:
    """Draws the events of a run as they arrive.

    Args:
        printer: draws the parts.
        kind: the kind of component.
        run_id: the run.
        indent: columns before each line.
        whole: True if the events start with the first one of the run.

    Attributes:
        output: the text of the run and its end.
    """

    def __init__(
        self, printer: Printer, kind: ComponentKind, run_id: str = "", *, indent: int = 0,
        whole: bool = True,
    ) -> None:  # fmt: skip
        self._answer = LiveAnswer(printer, indent=indent)
        self.output = RunOutput(kind, write=self._answer.add, run_id=run_id, whole=whole)
        self._printer = printer
        self._indent = indent
        self._started: dict[str, str] = {}
        self._steps: dict[str, str] = {}
        self._step = ""
        self._parts: dict[str, _Part] = {}

    @property
    def in_line(self) -> bool:
        """False: whole lines are written only."""
        return False

    def take(self, event: StreamEvent) -> None:
        """Draw one event."""
        parsed = parse_event(event.name, event.data, event.seq)
        self.output.take_parsed(parsed)
        own = parsed.run_id == self.output.run_id
        part = None if own else self._find_part(parsed)
        match parsed.kind:
            case EventKind.TOOL_CALL_STARTED:
                self._started[parsed.call_id] = parsed.at or ""
                if own:
                    self._answer.end()
            case EventKind.TOOL_CALL_COMPLETED:
                self._take_tool(parsed, part)
            case EventKind.STEP_STARTED:
                self._step = clean_line(parsed.data.get("step_name"))
            case _ if part is not None:
                self._take_member(parsed, part)
            case _ if self.output.end:
                self._answer.end()

    def conclude(self, record: Data) -> None:
        """Draw the rest of a run whose last event is missing, from its record."""
        self.output.conclude(record)
        self._answer.end()

    def end_line(self) -> None:
        """Do nothing before a note: whole lines are written only."""

    def flush(self) -> None:
        """Draw the text so far although its last block is not complete."""
        self._answer.end()

    def _take_tool(self, event: Event, part: _Part | None) -> None:
        tool = event.tool
        began = self._started.pop(event.call_id, "")
        if tool.get("tool_name") in DELEGATIONS and not tool.get("tool_call_error"):
            return
        span = {"started_at": began, "finished_at": event.at}
        call = build_call(tool, span, {"status": "RUNNING"})
        if part is not None:
            part.end_text()
            part.items.append(call)
            return
        self._answer.end_part()
        self._printer.print_tool(call, self._indent)

    def _find_part(self, event: Event) -> _Part:
        run_id, data = event.run_id, event.data
        if run_id not in self._parts:
            names = ("run_id", "parent_run_id", "agent_id", "team_id", "workflow_id")
            record = {name: data[name] for name in names if data.get(name)}
            record |= {"status": "RUNNING", "started_at": event.at}
            self._parts[run_id] = _Part(record)
            if data.get("parent_run_id") == self.output.run_id:
                self._steps[run_id] = self._step
        return self._parts[run_id]

    def _take_member(self, event: Event, part: _Part) -> None:
        if event.kind is EventKind.CONTENT:
            part.text.append(event.text)
        status, data = event.end_status, event.data
        if status is None:
            return
        part.end_text()
        if not part.items and data.get("content"):  # of a workflow: only its end has the text
            part.items.append(Answer(clean_text(data["content"])))
        part.record |= {"status": status, "finished_at": event.at}
        part.record |= {name: data[name] for name in ("error", "metrics") if data.get(name)}
        named = find_component(part.record)
        view = RunView(part.record, clean_line(named[1] if named else "run"), "", part.items)
        run_id = event.run_id
        del self._parts[run_id]
        member = Member(view, self._steps.pop(run_id, ""), "")
        parent = self._parts.get(str(part.record.get("parent_run_id")))
        if parent is not None:
            parent.end_text()
            parent.items.append(member)
            return
        self._answer.end_part()
        self._printer.print_member(member, self._indent)
