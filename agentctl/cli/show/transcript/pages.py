"""Transcripts of sessions and runs as whole pages, drawn or as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

from agentctl.cli.io import current_io
from agentctl.cli.options import FieldsOutput, build_output_option, flag
from agentctl.cli.show.output import Format
from agentctl.errors import AgentctlError, UsageError
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import Record
from agentctl.transcripts import markdown
from agentctl.transcripts.model import DrawnRun
from agentctl.transcripts.runs import CausesReader, SessionRuns
from agentctl.transcripts.texts import TRACE_URL, Look, describe_details
from agentctl.transcripts.timeline import draw_timeline

if TYPE_CHECKING:
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


_FLAGS = ("last", "all", "full", "members", "timeline", "follow", "raw", "local_time")
"""The options that only a transcript has, in the order in which an error names one."""


@dataclass(frozen=True, slots=True)
class TranscriptOutput(FieldsOutput):
    """The options of a command that shows a transcript, or the record of its subject."""

    output: Annotated[
        Format | None, build_output_option("table, text, markdown, json, jsonl, tsv or name")
    ] = None  # type: ignore[assignment]
    full: Annotated[bool, flag("--full", "Show whole tool calls, prompts and reasoning")] = False
    members: Annotated[bool, flag("--members", "Show the work of every member and step")] = False
    raw: Annotated[bool, flag("--raw", "Show answers as sent, not as Markdown")] = False
    local_time: Annotated[
        bool, flag("--local-time", "Show times in the local time zone instead of UTC")
    ] = False
    no_pager: Annotated[
        bool, flag("--no-pager", "Use no pager  [env: AGENTCTL_PAGER, default: less -FRX]")
    ] = False

    def resolve(self, **options: bool) -> Format | None:
        """Return the form of the transcript; None if the record is shown.

        An option that only a transcript has selects `text` off a terminal.

        Args:
            options: True for the other options that only a transcript has and that were given.

        Raises:
            UsageError: such an option was given together with another format, or with `--fields`.
        """
        form = self.format
        is_transcript = form in ("table", "text", "markdown")
        given = [name for name in _FLAGS if options.get(name, getattr(self, name, False))]
        flag = f"--{given[0].replace('_', '-')}" if given else ""
        if flag and self.fields is not None:
            raise UsageError(f"{flag} is for a transcript and excludes --fields")
        if flag and not is_transcript:
            if self.output is not None:
                raise UsageError(
                    f"{flag} has no effect with -o {form}", hint="use -o text or -o markdown"
                )
            return "text"
        return form if is_transcript and self.fields is None else None

    def create_look(self, form: Format) -> Look:
        """Return the choices of the reader; ids are short only in a table at a terminal."""
        short = form == "table" and current_io().out_is_terminal
        return Look(self.full, self.members, self.raw, self.local_time, short)


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
