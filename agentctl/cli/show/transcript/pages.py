"""Transcripts of sessions and runs as whole pages, drawn or as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from agentctl.cli.io import current_io
from agentctl.cli.show.output import resolve_format
from agentctl.errors import AgentctlError, UsageError
from agentctl.records.kinds import Record
from agentctl.transcripts import markdown
from agentctl.transcripts.model import DrawnRun
from agentctl.transcripts.runs import CausesReader, SessionRuns
from agentctl.transcripts.texts import TRACE_URL, Look, describe_details
from agentctl.transcripts.timeline import draw_timeline

if TYPE_CHECKING:
    from agentctl.cli.show.output import Format
    from agentctl.cli.show.transcript.draw import Printer
    from agentctl.interface.operations import Operations
    from agentctl.interface.requests import RunView, SessionLocator

Write = Callable[[str], object]

TIMELINE_WIDTH = 100
"""Columns of a timeline in Markdown."""


class TraceLinks:
    """Adds the pages about traces to runs. The server names their address once."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._url: str | None = None

    async def add_to(self, run: Record) -> Record:
        """Return a run with the page about its trace, if there is one."""
        if not run.get("trace_id"):
            return run
        if self._url is None:
            try:
                self._url = (await self._operations.get_me()).value["trace_url"] or ""
            except (AgentctlError, KeyError):
                self._url = ""
        if not self._url:
            return run
        return {**run, TRACE_URL: self._url.replace("{trace_id}", str(run["trace_id"]))}


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
    part = await runs.find_last(last, session)
    page.print_session(session, part.describe())
    causes, links = CausesReader(operations, where.db_id), TraceLinks(operations)
    async for number, run in runs.draw(part):
        await causes.add_to(run)
        run.record = await links.add_to(run.record)
        page.print_run(run, number)
    hints = [*(["all runs: --all"] if part.first > 1 else []), "whole tools and prompts: --full"]
    page.print_foot(" · ".join(hints))


def is_transcript(form: str) -> bool:
    """Return True if a format is a form of transcripts."""
    return form in ("table", "text", "markdown")


def resolve_transcript_format(
    output: Format | None, fields: str | None, options: Mapping[str, bool]
) -> Format:
    """Return the output format of a command with options that only a transcript has.

    Such an option off a terminal selects `text`.

    Args:
        output: `--output`.
        fields: `--fields`.
        options: True for the options that were given, by their flags.

    Raises:
        UsageError: such an option was given together with another format, or with `--fields`.
    """
    form = resolve_format(output)
    given = [flag for flag, is_given in options.items() if is_given]
    if not given:
        return form
    if fields is not None:
        raise UsageError(f"{given[0]} is for a transcript and excludes --fields")
    if not is_transcript(form):
        if output is not None:
            raise UsageError(
                f"{given[0]} has no effect with -o {form}", hint="use -o text or -o markdown"
            )
        return "text"
    return form


def create_look(*, full: bool, members: bool, raw: bool, local_time: bool, form: Format) -> Look:
    """Return the choices of a reader; ids are short only in a table at a terminal."""
    short = form == "table" and current_io().out_is_terminal
    return Look(full, members, raw, local_time, short)


def create_page(form: Format, look: Look, write: Write) -> TranscriptPage:
    """Create a page in a format: `markdown`, or drawn for any other."""
    if form == "markdown":
        return MarkdownPage(look, write)
    from agentctl.cli.show.transcript.draw import Printer, create_console

    return Printer(create_console(styled=form != "text"), look, write)


class MarkdownPage:
    """A transcript as a Markdown document."""

    def __init__(self, look: Look, write: Write) -> None:
        self._look = look
        self._write = write

    def print_session(self, session: Record, shown: str) -> None:
        self._write(markdown.format_session(session, shown))

    def print_run(self, run: DrawnRun, number: int | None = None) -> None:
        self._write(markdown.format_run(run, self._look, number))

    def print_details(self, run: Record) -> None:
        lines = [f"- {label}: {value}\n" for label, value in describe_details(run)]
        self._write("".join(lines) + "\n")

    def print_timeline(self, run: Record, children: Mapping[str, list[Record]]) -> None:
        lines = draw_timeline(run, children, TIMELINE_WIDTH)
        self._write("\n".join(["```text", *lines, "```", "", ""]))

    def print_foot(self, text: str) -> None:
        """Print nothing: the last line is about the command."""


TranscriptPage: TypeAlias = "Printer | MarkdownPage"
"""One form of a transcript. Markdown has no live runs: a run is printed at its end."""
