"""The texts of the screen: cells of lists, and the forms of the pane."""

from __future__ import annotations

import asyncio
import io
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from agentctl.cli.show.event_lines import describe_event
from agentctl.cli.show.transcript.draw import SHORT_ID, Printer
from agentctl.errors import AgentctlError, TooManyRequests, Unavailable
from agentctl.interface.operations import Operations
from agentctl.interface.requests import BEFORE_FIRST_EVENT, ResumeRequest, StreamEvent
from agentctl.light_dataclass import dataclass
from agentctl.records.events import TEXT_KINDS, parse_event
from agentctl.records.kinds import Record, component_of_run, find_component
from agentctl.records.phase import describe_run
from agentctl.records.times import format_elapsed, format_span, now
from agentctl.top.feed import Row, is_live
from agentctl.top.head import FIRST_PAUSE, LONGEST_PAUSE
from agentctl.transcripts.model import (
    DrawnRun,
    build_drawn_run,
    clean_line,
    find_tokens,
    parse_time,
)
from agentctl.transcripts.texts import Look, format_tokens, get_look
from agentctl.transcripts.timeline import draw_timeline

MAXIMUM_WIDTH = 100
"""Columns of a transcript; a timeline has the whole width."""

_LONGEST_CELL = 200
_LONGEST_INPUT = 200
_DEEPEST = 4

MAXIMUM_LINES = 200
MAXIMUM_LINE = 500

Run = dict[str, Any]


def build_cells(row: Row) -> list[Text]:
    """Return the cells of a run; those of an ended one are dim, except its state."""
    run = row.run
    style = "" if is_live(run) else "dim"
    kind, component = find_component(run) or ("", "?")
    indent = ""
    if row.level:
        indent = "  " * (min(row.level, _DEEPEST) - 1) + ("└ " if row.is_last else "├ ")
    suffix = "" if kind == "agent" else f" {kind}"
    return [
        Text(indent + clean_line(row.run_id[:SHORT_ID]), style),
        format_state(run),
        cell(f"{component}{suffix}", style),
        cell(run.get("user_id") or "", style),
        Text(format_age(run.get("created_at")), style),
        number(find_tokens(run), style),
        cell(describe_run(run)["sentence"] or _cut_input(run), style),
    ]


def format_state(run: Record) -> Text:
    """Return glyph and words of a run's state, in their color; `!` if its work goes on."""
    phase = describe_run(run)
    look = get_look(phase)
    text = Text(f"{look.glyph} {clean_line(phase['words'])}", look.style)
    return text.append("!", "yellow") if phase["warning"] else text


def cell(value: object, style: str = "") -> Text:
    """Return a value as one line of a list; a very long one is cut."""
    line = clean_line(str(value)[: 4 * _LONGEST_CELL])
    return Text(line if len(line) <= _LONGEST_CELL else f"{line[:_LONGEST_CELL]}…", style)


def number(value: object, style: str = "") -> Text:
    """Return a number with separators; '' for any other value."""
    return Text(f"{value:,}" if isinstance(value, int) else "", style)


def format_age(moment: object) -> str:
    """Return the time since a timestamp, '' without one."""
    parsed = parse_time(moment)
    return "" if parsed is None else format_span(max(0, now() / 1e6 - parsed.timestamp()))


def _cut_input(run: Record) -> str:
    text = str(run.get("input") or "")
    return text if len(text) <= _LONGEST_INPUT else f"{text[:_LONGEST_INPUT]}…"


def draw_facts(run: Record) -> Text:
    """Return the facts about a run: state, duration, tokens, tools, members, cancel and end."""
    drawn = DrawnRun(run)
    phase = describe_run(run)
    facts = []
    if (seconds := drawn.seconds) is not None:
        facts.append(format_elapsed(seconds))
    if isinstance(total := run.get("total_tokens"), int):
        facts.append(
            f"{total:,} token{'' if total == 1 else 's'}{' so far' if is_live(run) else ''}"
        )
    elif tokens := format_tokens(drawn):
        facts.append(tokens)
    for field, noun in (("tool_calls", "tool call"), ("member_count", "member")):
        count = run.get(field)
        if isinstance(count, int) and count:
            facts.append(f"{count:,} {noun}{'' if count == 1 else 's'}")
    text = format_state(run).append("".join(f" · {fact}" for fact in facts), "none")
    if phase["sentence"]:
        style = "yellow" if phase["warning"] or phase["name"] == "stopping" else "none"
        text.append(f"\n{clean_line(phase['sentence'])}", style)
    if run.get("cancel_reason"):
        text.append(f"\nreason: {clean_line(run['cancel_reason'])}", "none")
    message = clean_line(str(run.get("input") or "")[:_LONGEST_INPUT])
    return text.append(f"\n{message}", "dim") if message else text


def draw_runs(
    runs: Sequence[Record], children: Mapping[str, Sequence[Record]], width: int, *, timeline: bool
) -> Text:
    """Return the transcripts of runs, or facts about the last one and a bar for each part."""
    if timeline:
        lines = draw_timeline(runs[-1], children, max(width, 40))
        return draw_facts(runs[-1]).append("\n\n" + "\n".join(lines), "none")
    lines = []
    file = io.TextIOWrapper(io.BytesIO(), "utf-8")
    console = Console(
        file=file,
        width=min(max(width, 20), MAXIMUM_WIDTH),
        force_terminal=True,
        color_system="standard",
        emoji=False,
        highlight=False,
        markup=False,
    )
    printer = Printer(console, Look(short_ids=True), lines.append)
    for run in runs:
        printer.print_run(build_drawn_run({**run, "input": _cut_input(run)}, children))
    return Text.from_ansi("".join(lines).rstrip("\n"))


@dataclass(slots=True)
class _Line:
    """One event, or the text of several in a row."""

    run_id: str
    when: str
    name: str
    text: str
    is_text: bool


class EventLog:
    """The last events of one run, from a stream that is resumed after an interruption.

    Args:
        only: returns True for the ids of the runs whose events are kept.
        changed: is called after each event.
    """

    def __init__(
        self,
        operations: Operations,
        run: Run,
        only: Callable[[str], bool],
        changed: Callable[[], None],
    ) -> None:
        self._operations = operations
        self._run = run
        self._only = only
        self._changed = changed
        self._last = BEFORE_FIRST_EVENT
        self._lines: deque[_Line] = deque(maxlen=MAXIMUM_LINES)
        self._state = "waiting for events"

    async def follow(self) -> None:
        """Read events until the run ends or the caller may not read them."""
        pause = FIRST_PAUSE
        while True:
            before = self._last
            try:
                kind, component = component_of_run(self._run)
                request = ResumeRequest(self._run["session_id"], self._last)
                run_id = self._run["run_id"]
                async for event in self._operations.follow_run(kind, component, run_id, request):
                    self._take(event)
            except (Unavailable, TooManyRequests) as failure:
                pause = FIRST_PAUSE if self._last > before else min(2 * pause, LONGEST_PAUSE)
                self._set_state(f"{failure.detail}, trying again in {pause:g} s")
                await asyncio.sleep(pause)
            except AgentctlError as failure:
                self._set_state(failure.detail)
                return
            else:
                ended = "no events are stored for this run"
                self._set_state(ended if self._last == BEFORE_FIRST_EVENT else "")
                return

    def _set_state(self, text: str) -> None:
        self._state = clean_line(text)
        self._changed()

    def _take(self, event: StreamEvent) -> None:
        if event.seq <= self._last:
            return
        self._last = event.seq
        self._state = ""
        parsed = parse_event(event.name, event.data, event.seq)
        run_id = parsed.run_id
        if not self._only(run_id):
            return
        is_text = parsed.kind in TEXT_KINDS
        line = parsed.text if is_text else describe_event(parsed)
        last = self._lines[-1] if self._lines else None
        if is_text and last is not None and last.is_text and last.run_id == run_id:
            last.text = (last.text + parsed.text)[-MAXIMUM_LINE:]
        elif line is not None:
            moment = parse_time(parsed.at)
            when = moment.strftime("%H:%M:%S.%f")[:12] if moment else ""
            name = clean_line((find_component(parsed.data) or ("", ""))[1])
            self._lines.append(_Line(run_id, when, name, line[-MAXIMUM_LINE:], is_text))
        self._changed()

    def draw(self) -> Text:
        """Return the lines, the newest last."""
        text = Text()
        for line in self._lines:
            text.append(f"{line.when:12} ", "dim").append(f"{line.name} ", "bold")
            text.append(f"{clean_line(line.text)}\n", "none")
        return text.append(self._state, "dim")
