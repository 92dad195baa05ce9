"""Drawing of transcripts with rich, line by line.

The console decides about styles and width, so one drawing serves terminals, pipes and `-o text`.
Facts are at the right margin. No line is wider than the console.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.text import Text

from agentctl.cli.io import current_io
from agentctl.cli.show.transcript.markdown import draw_markdown
from agentctl.records.kinds import Record
from agentctl.records.phase import describe_run
from agentctl.records.times import format_elapsed
from agentctl.transcripts.model import (
    DrawnCall,
    DrawnMember,
    DrawnRun,
    build_drawn_run,
    clean_line,
    clean_text,
    count_characters,
    parse_time,
)
from agentctl.transcripts.texts import (
    SESSION_OBJECTS,
    TRACE_URL,
    Look,
    count_session_tokens,
    cut_text,
    describe_causes,
    describe_details,
    describe_objects,
    describe_origin,
    describe_session,
    format_day,
    format_length,
    format_size,
    format_time,
    format_tokens,
    get_look,
)
from agentctl.transcripts.timeline import draw_timeline

MINIMUM_WIDTH = 40
"""Minimum width of a transcript in columns; a narrower terminal wraps its lines."""

MAXIMUM_WIDTH = 100
"""Maximum width of a transcript in columns; the rest of a wider terminal stays empty."""

INDENT = 4
MEMBER_INDENT = 2
HANGING_INDENT = 2
DEEPEST_INDENT = INDENT + 4 * MEMBER_INDENT

SHORT_ID = 13
"""Characters of a run id at a terminal: the milliseconds of a UUIDv7."""

TOOL_LOOKS = {
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "running": ("●", "blue"),
    "waiting": ("‖", "yellow"),
    "cancelled": ("■", "dim"),
}

ASCII = str.maketrans(
    {
        "◌": ".", "●": "*", "‖": "=", "◐": "~", "■": "#", "✓": "+", "✗": "x", "ƒ": "f", "▸": ">",
        "▾": "v",
        "·": "-", "…": "...", "─": "-", "━": "=", "•": "*", "│": "|", "▌": "|", "→": "->",
        "█": "#", "▒": ":", "░": "-", "▏": "|",
    }
)  # fmt: skip
"""Replacements for outputs that are not Unicode."""


class Printer:
    """Prints sessions, runs and their parts on a console.

    Args:
        console: decides the width of the lines.
        write: receives each text, which has whole lines.
    """

    def __init__(self, console: Console, look: Look, write: Callable[[str], object]) -> None:
        self.console = console
        self.look = look
        self._write = write
        self._ascii = not console.encoding.lower().startswith("utf")
        self._day = ""

    def print(self, what: RenderableType = "", *, indent: int = 0) -> None:
        """Print a text or another renderable, wrapped at words."""
        with self.console.capture() as captured:
            self.console.print(what, width=self.console.width - indent)
        text = captured.get().translate(ASCII) if self._ascii else captured.get()
        lines = (f"{' ' * indent}{line}".rstrip() for line in text.splitlines())
        self._write("".join(f"{line}\n" for line in lines))

    def print_line(self, left: Text, right: Text | None = None, *, indent: int = 0) -> None:
        """Print a line with facts at the right margin.

        The left part is cut to fit; with `look.full` it is wrapped, with a hanging indent.
        """
        room = self.console.width - indent
        right_width = right.cell_len + 2 if right else 0
        if not self.look.full and room - right_width >= MINIMUM_WIDTH // 2:
            left = _cut(left, room - right_width)

        lines = [Text().append_text(line) for line in left.wrap(self.console, room)] or [Text()]
        if len(lines) > 1:
            later_text = Text(" ").join(lines[1:])
            wrapped_lines = later_text.wrap(self.console, room - HANGING_INDENT)
            indented = [Text(" " * HANGING_INDENT).append_text(line) for line in wrapped_lines]
            lines = [lines[0], *indented]

        if right is not None:
            if lines[-1].cell_len + right_width > room:
                lines.append(Text())
            lines[-1].pad_right(max(0, room - lines[-1].cell_len - right.cell_len))
            lines[-1].append_text(right)

        for line in lines:
            self.print(line, indent=indent)

    def print_session(self, session: Record, shown: str) -> None:
        """Print the head of a session; `shown` describes the runs that follow."""
        name, facts = describe_session(session)
        last = parse_time(session.get("updated_at"))
        counts = [shown, *count_session_tokens(session)]
        if last is not None:
            self._day = format_day(last, self.look)
            counts.append(self._day)
        self.print_line(Text(name, style="bold"), Text(" · ".join(facts), style="dim"))
        self.print(Text(" · ".join(counts), style="dim"))
        self._print_labels(describe_objects(session, SESSION_OBJECTS))
        self._print_rule()

    def print_run(self, run: DrawnRun, number: int | None = None) -> None:
        """Print a top-level run: its input, its items and its end."""
        self.print_input(run, number)
        self.print_head(run, indent=INDENT)
        self.print_items(run, INDENT)
        self.print_end(run, INDENT)
        self.print()

    def start_run(self, run: Record, number: int) -> None:
        """Print the input of a live run, whose events are drawn next."""
        drawn = build_drawn_run(run)
        self.print_input(drawn, number)
        self.print_head(drawn, indent=INDENT)

    def end_run(self, run: DrawnRun) -> None:
        """Print the end of a run whose events were drawn."""
        self.print_head(run, indent=INDENT)
        self.print_end(run, INDENT)
        self.print()

    def print_details(self, run: Record) -> None:
        """Print the objects of a run, and its place among other runs."""
        self._print_labels(describe_details(run))

    def print_timeline(self, run: Record, children: Mapping[str, Sequence[Record]]) -> None:
        """Print when the parts of a run worked."""
        for line in draw_timeline(run, children, self.console.width):
            self.print(Text(line, no_wrap=True, overflow="ellipsis"))
        self.print()

    def print_foot(self, text: str) -> None:
        """Print a last line."""
        self._print_rule()
        self.print(Text(text, style="dim"))

    def print_input(self, run: DrawnRun, number: int | None = None) -> None:
        """Print the first lines of a run: its user, time, id and input."""
        record = run.record
        run_id = str(record.get("run_id"))
        moment = parse_time(record.get("created_at"))
        facts = [f"run {clean_line(run_id[:SHORT_ID] if self.look.short_ids else run_id)}"]
        if moment is not None:
            day = format_day(moment, self.look)
            if self._day and day != self._day:
                self.print(Text(day, style="dim", justify="center"))
            self._day = day
            facts.insert(0, format_time(moment, self.look))

        prefix = "" if number is None else f"{number}"
        left = Text(f"{prefix:<{INDENT - 1}} " if prefix else " " * INDENT)
        left.append(clean_line(record.get("user_id") or "user"), style="bold")
        self.print_line(left, Text(" · ".join(facts), style="dim"))

        origin = describe_origin(record)
        if origin is not None:
            run_id = origin.run_id[:SHORT_ID] if self.look.short_ids else origin.run_id
            line = f"{origin.kind} of {run_id} {origin.place}"
            self.print_line(Text(line, style="dim"), indent=INDENT)

        self.print(Text(cut_text(run.input, self.look.full), overflow="fold"), indent=INDENT)
        self.print()

    def print_head(self, run: DrawnRun, *, indent: int) -> None:
        """Print the component of a run and the facts about its end."""
        facts = _describe_facts(run, split=True)
        self.print_line(Text(run.component, style="bold"), facts, indent=indent)

    def print_items(self, run: DrawnRun, indent: int) -> None:
        """Print the items of a run."""
        for item in run.items:
            if isinstance(item, DrawnMember):
                self.print_member(item, indent)
            elif item["type"] == "tool_call":
                self.print_tool(DrawnCall.of(item), indent)
            elif item["type"] == "text":
                self.print_answer(clean_text(item["text"]), indent, count_characters(item))
            elif item["type"] in ("compacted", "notice"):
                self.print(Text(clean_line(item["text"]), style="dim"), indent=indent)
            elif item["type"] == "thinking":
                self._print_folded("thinking", clean_text(item["text"]), indent)
            elif item["type"] == "prompt" and item.get("message_id"):
                self.print_message(clean_text(item["text"]), indent, count_characters(item))
            elif item["type"] == "prompt" and self.look.full:
                self._print_folded(item["role"], clean_text(item["text"]), indent)

    def print_message(self, text: str, indent: int, characters: int = 0) -> None:
        """Print a message that was sent to the run while it works, as the input is printed."""
        text = cut_text(text, self.look.full, characters).rstrip()
        self.print(Text(f"> {text}", overflow="fold"), indent=indent)

    def print_answer(self, text: str, indent: int, characters: int = 0) -> None:
        """Print a text of the component; `characters` is the length of a cut text, else 0."""
        text = cut_text(text, self.look.full, characters).rstrip()
        if self.look.raw:
            self.print(Text(text, overflow="fold"), indent=indent)
        else:
            self.print(draw_markdown(text), indent=indent)

    def print_tool(self, call: DrawnCall, indent: int) -> None:
        """Print a tool call, the decision about it, and its result if it is short."""
        glyph, style = TOOL_LOOKS[call.outcome]
        duration = ""
        if call.seconds is not None and call.outcome != "waiting":
            duration = f" {format_elapsed(call.seconds)}"
        right = Text(f"{glyph}{duration}", style=style)
        left = Text("ƒ ", style="dim").append(call.name, style="bold")
        left.append(f"({call.arguments})", style="none")
        result = call.result

        # With a decision, or everything shown: each part has its own lines.
        if self.look.full or call.decision:
            self.print_line(left, right, indent=indent)
            if call.decision:
                decision_style = "yellow" if call.outcome == "waiting" else "dim"
                decision = Text(call.decision, style=decision_style)
                self.print_line(decision, indent=indent + MEMBER_INDENT)
            if result and self.look.full:
                self.print(Text(result, overflow="fold"), indent=indent + MEMBER_INDENT)
            elif result:
                is_shown = self.look.shows(result)
                line = clean_line(result) if is_shown else format_length(result, call.characters)
                self.print_line(Text(line, style="dim"), indent=indent + MEMBER_INDENT)
            return

        # Otherwise a short result is part of the line of the call if there is room.
        room = self.console.width - indent - right.cell_len - 2
        line = clean_line(result)
        if not self.look.shows(result):
            size = Text(f"  {format_length(result, call.characters)}", style="dim")
            left = _cut(left, room - size.cell_len, end="…)").append_text(size)
            line = ""
        elif left.cell_len + 2 + Text(line).cell_len <= room:
            left.append(f"  {line}" if line else "", style="dim")
            line = ""
        else:
            left = _cut(left, room, end="…)")

        self.print_line(left, right, indent=indent)
        if line:
            self.print_line(Text(line, style="dim"), indent=indent + MEMBER_INDENT)

    def print_member(self, member: DrawnMember, indent: int) -> None:
        """Print a member in one line, and its items if it is open."""
        run = member.run
        is_open = self.look.opens(member.run)
        left = Text("▾ " if is_open else "▸ ", style="dim")
        left.append(f"{member.label} · " if member.label else "").append(run.component, "bold")
        left.append(f": {member.task}" if member.task else "")
        facts = _describe_facts(run, words=run.record.get("status") != "COMPLETED")
        if run.tool_calls:
            facts.append(f" · {run.tool_calls} ƒ")
        self.print_line(left, facts, indent=indent)

        if is_open:
            inner_indent = min(indent + MEMBER_INDENT, DEEPEST_INDENT)
            self.print_items(run, inner_indent)
            self.print_end(run, inner_indent)

    def print_end(self, run: DrawnRun, indent: int) -> None:
        """Print the error of a run and the facts about its cancel and stop."""
        record = run.record
        error = record.get("error") or {}
        if error:
            self.print(Text(clean_line(error.get("detail") or ""), style="red"), indent=indent)
        for cause, place in describe_causes(run):
            self.print(Text(f"cause: {cause}", style="red"), indent=indent)
            self.print(Text(place, style="dim"), indent=indent + MEMBER_INDENT)
        if record.get(TRACE_URL):
            self.print(Text(f"trace: {clean_line(record[TRACE_URL])}", style="dim"), indent=indent)

        # The sentence about the end, without the error that stands above it.
        phase = describe_run({**record, "error": None})
        if not phase["sentence"]:
            return
        reason = record.get("cancel_reason")
        quoted_reason = f' · reason: "{clean_line(reason)}"' if reason else ""
        style = "yellow" if phase["warning"] or phase["name"] == "stopping" else "dim"
        text = f"── {clean_line(phase['sentence'])}{quoted_reason} ──"
        self.print(Text(text, style=style), indent=indent)

    def _print_rule(self) -> None:
        self.print(Rule(characters="─", style="dim"))

    def _print_labels(self, labels: Iterable[tuple[str, str]]) -> None:
        for label, value in labels:
            self.print_line(Text(f"{label}: {value}", style="dim"))

    def _print_folded(self, title: str, text: str, indent: int) -> None:
        if self.look.full:
            self.print(Text(f"{title}:", style="dim"), indent=indent)
            self.print(Text(text, style="dim", overflow="fold"), indent=indent + MEMBER_INDENT)
        else:
            left = Text(f"… {title}: {clean_line(text[:MAXIMUM_WIDTH])}", style="dim")
            self.print_line(left, Text(format_size(text), style="dim"), indent=indent)


def _describe_facts(run: DrawnRun, *, words: bool = True, split: bool = False) -> Text:
    """Return state, duration and tokens of a run; without `words` the state is its glyph."""
    phase = describe_run(run.record)
    look = get_look(phase)
    facts = Text(f"{look.glyph} {phase['words']}" if words else look.glyph, style=look.style)
    code = (run.record.get("error") or {}).get("code")
    if phase["name"] == "failed" and code:
        facts.append(f" · {clean_line(code)}")
    if phase["warning"]:
        facts.append(f" ! {phase['warning']}", style="yellow")

    if run.seconds is not None:
        facts.append(f"{' ·' if words else ''} {format_elapsed(run.seconds)}")
    tokens = format_tokens(run, split=split)
    if tokens:
        facts.append(f" · {tokens}")
    return facts


def find_width() -> int:
    """Return the columns of a transcript on stdout, 40 to 100.

    Off a terminal COLUMNS decides, else it is 80.
    """
    io = current_io()
    return min(max(io.width(io.out) or 80, MINIMUM_WIDTH), MAXIMUM_WIDTH)


def create_console(*, styled: bool) -> Console:
    """Create the console of a transcript on stdout."""
    io = current_io()
    return io.console(io.out, find_width(), styled=styled and io.styles(io.out))


def _cut(text: Text, width: int, end: str = "…") -> Text:
    """Return a text that is not wider than a width; `end` shows that it was cut."""
    if text.cell_len <= width:
        return text
    cut_text = text.copy()
    cut_text.truncate(max(0, width - len(end)))
    cut_text.rstrip()
    return cut_text.append(end)
