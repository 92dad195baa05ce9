"""Transcripts of sessions and runs as whole pages, drawn or as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from agentctl.cli.io import current_io
from agentctl.cli.options import component_of_run
from agentctl.cli.show.transcript import source
from agentctl.cli.show.transcript.model import RunView, build_run_view, clean_line, parse_time
from agentctl.cli.show.transcript.texts import Look, format_day
from agentctl.cli.show.transcript.timeline import draw_timeline
from agentctl.records.kinds import find_component

if TYPE_CHECKING:
    from agentctl.cli.show.output import Format
    from agentctl.cli.show.transcript.live import LiveRun

Record = Mapping[str, Any]
Write = Callable[[str], object]

TIMELINE_WIDTH = 100
"""Columns of a timeline in Markdown."""

_OBJECTS = ("output", "metadata", "session_state")


class TranscriptPage(Protocol):
    """One form of a transcript."""

    def print_session(self, session: Record, shown: str) -> None:
        """Print the head of a session; `shown` describes the runs that follow."""
        ...

    def print_run(self, view: RunView, number: int | None = None) -> None:
        """Print a top-level run."""
        ...

    def start_run(self, run: Record, number: int) -> LiveRun | None:
        """Print the input of a live run, and return what draws its events.

        None: the form has no live runs. Then the run is printed at its end.
        """
        ...

    def end_run(self, view: RunView) -> None:
        """Print the end of a run whose events were drawn."""
        ...

    def print_details(self, run: Record) -> None:
        """Print the objects of a run, and its place among other runs."""
        ...

    def print_timeline(self, run: Record, children: Mapping[str, list[Record]]) -> None:
        """Print when the parts of a run worked."""
        ...

    def print_foot(self, text: str) -> None:
        """Print a last line."""
        ...


def is_transcript(form: str) -> bool:
    """Return True if a format is a form of transcripts."""
    return form in ("table", "text", "markdown")


def create_look(*, full: bool, members: bool, raw: bool, local_time: bool, form: Format) -> Look:
    """Return the choices of a reader; ids are short only in a table at a terminal."""
    short = form == "table" and current_io().out_is_terminal
    return Look(full, members, raw, local_time, short)


def create_page(form: Format, look: Look, write: Write) -> TranscriptPage:
    """Create a page in a format: `markdown`, or drawn for any other."""
    if form == "markdown":
        return MarkdownPage(look, write)
    return DrawnPage(look, write, styled=form != "text")


class DrawnPage:
    """A transcript for people."""

    def __init__(self, look: Look, write: Write, *, styled: bool) -> None:
        from agentctl.cli.show.transcript.draw import Printer, create_console

        self._printer = Printer(create_console(styled=styled), look, write)
        self._look = look

    def print_session(self, session: Record, shown: str) -> None:
        from rich.text import Text

        name, facts = _describe_session(session)
        last = parse_time(session.get("updated_at"))
        counts = [shown, *_count_tokens(session)]
        if last is not None:
            counts.append(format_day(last, self._look))
            self._printer.set_day(last)
        self._printer.print_line(Text(name, style="bold"), Text(" · ".join(facts), style="dim"))
        self._printer.print(Text(" · ".join(counts), style="dim"))
        for label, value in _describe_objects(session, ("session_summary", *_OBJECTS)):
            self._printer.print_line(Text(f"{label}: {value}", style="dim"))
        self._printer.print_rule()

    def print_run(self, view: RunView, number: int | None = None) -> None:
        self._printer.print_run(view, number)
        self._printer.print()

    def start_run(self, run: Record, number: int) -> LiveRun:
        from agentctl.cli.show.transcript.draw import INDENT
        from agentctl.cli.show.transcript.live import LiveRun

        view = build_run_view(run)
        self._printer.print_input(view, number)
        self._printer.print_head(view, indent=INDENT)
        kind, _ = component_of_run(dict(run))
        return LiveRun(self._printer, kind, str(run["run_id"]), indent=INDENT)

    def end_run(self, view: RunView) -> None:
        from agentctl.cli.show.transcript.draw import INDENT

        self._printer.print_head(view, indent=INDENT)
        self._printer.print_end(view, INDENT)
        self._printer.print()

    def print_details(self, run: Record) -> None:
        from rich.text import Text

        for label, value in _describe_details(run):
            self._printer.print_line(Text(f"{label}: {value}", style="dim"))

    def print_timeline(self, run: Record, children: Mapping[str, list[Record]]) -> None:
        from rich.text import Text

        for line in draw_timeline(run, children, self._printer.console.width):
            self._printer.print(Text(line, no_wrap=True, overflow="ellipsis"))
        self._printer.print()

    def print_foot(self, text: str) -> None:
        from rich.text import Text

        self._printer.print_rule()
        self._printer.print(Text(text, style="dim"))


class MarkdownPage:
    """A transcript as a Markdown document."""

    def __init__(self, look: Look, write: Write) -> None:
        self._look = look
        self._write = write

    def print_session(self, session: Record, shown: str) -> None:
        name, facts = _describe_session(session)
        lines = [f"# {name}", "", " · ".join([*facts, shown, *_count_tokens(session)]), ""]
        objects = _describe_objects(session, ("session_summary", *_OBJECTS))
        lines += [f"- {label}: {value}" for label, value in objects]
        self._write("\n".join(lines).rstrip() + "\n\n")

    def print_run(self, view: RunView, number: int | None = None) -> None:
        self._write(source.format_run(view, self._look, number))

    def start_run(self, run: Record, number: int) -> None:
        """Print nothing: a run is printed at its end."""

    def end_run(self, view: RunView) -> None:
        """Print nothing: no run is drawn from its events."""

    def print_details(self, run: Record) -> None:
        lines = [f"- {label}: {value}\n" for label, value in _describe_details(run)]
        self._write("".join(lines) + "\n")

    def print_timeline(self, run: Record, children: Mapping[str, list[Record]]) -> None:
        lines = draw_timeline(run, children, TIMELINE_WIDTH)
        self._write("\n".join(["```text", *lines, "```", "", ""]))

    def print_foot(self, text: str) -> None:
        """Print nothing: the last line is about the command."""


def _describe_session(session: Record) -> tuple[str, list[str]]:
    session_id = clean_line(session.get("session_id"))
    named = find_component(session)
    facts = [f"session {session_id}"]
    if named is not None:
        facts.append(f"{named[0]} {clean_line(named[1])}")
    if session.get("user_id"):
        facts.append(clean_line(session["user_id"]))
    return clean_line(session.get("session_name") or session_id), facts


def _count_tokens(session: Record) -> Iterator[str]:
    metrics = session.get("metrics") or {}
    total = metrics.get("total_tokens", session.get("total_tokens"))
    if not isinstance(total, int) or not total:
        return
    inward, outward = metrics.get("input_tokens"), metrics.get("output_tokens")
    both = isinstance(inward, int) and isinstance(outward, int)
    yield f"{total:,} tokens" + (f" ({inward:,} in, {outward:,} out)" if both else "")


def _describe_objects(record: Record, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    import orjson

    for name in names:
        value = record.get(name)
        if name == "session_summary" and isinstance(value, dict):
            value = value.get("summary")
        if value:
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            yield name.removeprefix("session_"), clean_line(text)


def _describe_details(run: Record) -> Iterator[tuple[str, str]]:
    yield "session", clean_line(run.get("session_id"))
    if run.get("parent_run_id"):
        yield "parent run", clean_line(run["parent_run_id"])
    if run.get("member_runs"):
        yield "member runs", clean_line(", ".join(map(str, run["member_runs"])))
    yield from _describe_objects(run, _OBJECTS)
