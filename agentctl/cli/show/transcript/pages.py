"""Transcripts of sessions and runs as whole pages, drawn or as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from agentctl.cli.io import current_io
from agentctl.cli.show.transcript.timeline import draw_timeline
from agentctl.records.kinds import Record, component_of_run
from agentctl.transcripts import markdown
from agentctl.transcripts.model import DrawnRun, build_drawn_run, clean_line, parse_time
from agentctl.transcripts.runs import SessionRuns
from agentctl.transcripts.texts import (
    SESSION_OBJECTS,
    Look,
    count_session_tokens,
    describe_objects,
    describe_session,
    format_day,
)

if TYPE_CHECKING:
    from agentctl.cli.show.output import Format
    from agentctl.cli.show.transcript.live import LiveRun
    from agentctl.operations import Operations
    from agentctl.requests import RunView, SessionLocator

Write = Callable[[str], object]

TIMELINE_WIDTH = 100
"""Columns of a timeline in Markdown."""


async def print_transcript(
    operations: Operations,
    session: Record,
    where: SessionLocator,
    page: TranscriptPage,
    last: int | None,
    form: RunView,
) -> None:
    """Print a session and its newest `last` runs, None: all, one after the other.

    Args:
        form: the form in which the runs are read.
    """
    runs = SessionRuns(operations, str(session["session_id"]), where, form)
    part = await runs.find_last(last)
    page.print_session(session, part.describe())
    async for number, run in runs.draw(part):
        page.print_run(run, number)
    hints = [*(["all runs: --all"] if part.first > 1 else []), "whole tools and prompts: --full"]
    page.print_foot(" · ".join(hints))


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
        """Print the head of a session; `shown` describes the runs that follow."""
        from rich.text import Text

        name, facts = describe_session(session)
        last = parse_time(session.get("updated_at"))
        counts = [shown, *count_session_tokens(session)]
        if last is not None:
            counts.append(format_day(last, self._look))
            self._printer.set_day(last)
        self._printer.print_line(Text(name, style="bold"), Text(" · ".join(facts), style="dim"))
        self._printer.print(Text(" · ".join(counts), style="dim"))
        for label, value in describe_objects(session, SESSION_OBJECTS):
            self._printer.print_line(Text(f"{label}: {value}", style="dim"))
        self._printer.print_rule()

    def print_run(self, run: DrawnRun, number: int | None = None) -> None:
        """Print a top-level run."""
        self._printer.print_run(run, number)
        self._printer.print()

    def start_run(self, run: Record, number: int) -> LiveRun:
        """Print the input of a live run, and return what draws its events."""
        from agentctl.cli.show.transcript.draw import INDENT
        from agentctl.cli.show.transcript.live import LiveRun

        drawn = build_drawn_run(run)
        self._printer.print_input(drawn, number)
        self._printer.print_head(drawn, indent=INDENT)
        kind, _ = component_of_run(dict(run))
        return LiveRun(self._printer, kind, str(run["run_id"]), indent=INDENT)

    def end_run(self, run: DrawnRun) -> None:
        """Print the end of a run whose events were drawn."""
        from agentctl.cli.show.transcript.draw import INDENT

        self._printer.print_head(run, indent=INDENT)
        self._printer.print_end(run, INDENT)
        self._printer.print()

    def print_details(self, run: Record) -> None:
        """Print the objects of a run, and its place among other runs."""
        from rich.text import Text

        for label, value in _describe_details(run):
            self._printer.print_line(Text(f"{label}: {value}", style="dim"))

    def print_timeline(self, run: Record, children: Mapping[str, list[Record]]) -> None:
        """Print when the parts of a run worked."""
        from rich.text import Text

        for line in draw_timeline(run, children, self._printer.console.width):
            self._printer.print(Text(line, no_wrap=True, overflow="ellipsis"))
        self._printer.print()

    def print_foot(self, text: str) -> None:
        """Print a last line."""
        from rich.text import Text

        self._printer.print_rule()
        self._printer.print(Text(text, style="dim"))


class MarkdownPage:
    """A transcript as a Markdown document."""

    def __init__(self, look: Look, write: Write) -> None:
        self._look = look
        self._write = write

    def print_session(self, session: Record, shown: str) -> None:
        self._write(markdown.format_session(session, shown))

    def print_run(self, run: DrawnRun, number: int | None = None) -> None:
        self._write(markdown.format_run(run, self._look, number))

    def start_run(self, run: Record, number: int) -> None:
        """Print nothing: a run is printed at its end."""

    def end_run(self, run: DrawnRun) -> None:
        """Print nothing: no run is drawn from its events."""

    def print_details(self, run: Record) -> None:
        lines = [f"- {label}: {value}\n" for label, value in _describe_details(run)]
        self._write("".join(lines) + "\n")

    def print_timeline(self, run: Record, children: Mapping[str, list[Record]]) -> None:
        lines = draw_timeline(run, children, TIMELINE_WIDTH)
        self._write("\n".join(["```text", *lines, "```", "", ""]))

    def print_foot(self, text: str) -> None:
        """Print nothing: the last line is about the command."""


TranscriptPage = DrawnPage | MarkdownPage
"""One form of a transcript. Markdown has no live runs: a run is printed at its end."""


def _describe_details(run: Record) -> Iterator[tuple[str, str]]:
    yield "session", clean_line(run.get("session_id"))
    if run.get("parent_run_id"):
        yield "parent run", clean_line(run["parent_run_id"])
    if run.get("member_runs"):
        yield "member runs", clean_line(", ".join(map(str, run["member_runs"])))
    yield from describe_objects(run, SESSION_OBJECTS[1:])
