"""Transcripts of sessions and runs as whole pages, drawn or as Markdown, through a pager."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from shutil import which
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, TypeAlias

from agentctl.cli.io import current_io
from agentctl.cli.parameters import flag
from agentctl.cli.show.output import FieldsOutput, Format, build_output_option
from agentctl.cli.show.terminal import note
from agentctl.errors import AgentctlError, UsageError
from agentctl.records.kinds import Record
from agentctl.transcripts.export import format_run, format_session
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

_FLAGS = ("last", "all", "full", "members", "timeline", "follow", "raw", "local_time")
"""The options that only a transcript has; an error names the first one that is given."""

TranscriptPage: TypeAlias = "Printer | MarkdownPage"
"""One form of a transcript. Markdown has no live runs: a run is printed at its end."""

PAGER_VARIABLE = "AGENTCTL_PAGER"

DEFAULT_PAGER = "less -FRX"


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
                self._url = (await self._operations.system.get_me()).value["trace_url"] or ""
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
    """Print a session and its newest `last` runs, None: all, one after the other."""
    runs = SessionRuns(operations, str(session["session_id"]), where, form)
    part = await runs.find_last(last, session)
    page.print_session(session, part.describe())
    causes = CausesReader(operations, where.db_id)
    links = TraceLinks(operations)
    has_short_parts = False
    async for number, run in runs.draw(part):
        await causes.add_to(run)
        run.record = await links.add_to(run.record)
        has_short_parts = has_short_parts or run.has_short_parts
        page.print_run(run, number)

    hints = ["all runs: --all"] if part.first > 1 else []
    if has_short_parts:
        hints.append("whole tools and prompts: --full")
    if hints:
        page.print_foot(" · ".join(hints))


@dataclass(frozen=True, slots=True)
class TranscriptOutput(FieldsOutput):
    """The options of a command that shows a transcript, or the record of its subject."""

    output: Annotated[
        Format | None, build_output_option("table, text, markdown, json, jsonl, tsv or name")
    ] = None  # type: ignore[assignment]
    full: Annotated[bool, flag("--full", "Show complete tool calls, prompts and reasoning")] = False
    members: Annotated[bool, flag("--members", "Expand every member and step")] = False
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
        given_names = [name for name in _FLAGS if options.get(name, getattr(self, name, False))]
        flag = f"--{given_names[0].replace('_', '-')}" if given_names else ""

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
        self._write(format_session(session, shown))

    def print_run(self, run: DrawnRun, number: int | None = None) -> None:
        self._write(format_run(run, self._look, number))

    def print_details(self, run: Record) -> None:
        lines = [f"- {label}: {value}\n" for label, value in describe_details(run)]
        self._write("".join(lines) + "\n")

    def print_timeline(self, run: Record, children: Mapping[str, list[Record]]) -> None:
        lines = draw_timeline(run, children, TIMELINE_WIDTH)
        self._write("\n".join(["```text", *lines, "```", "", ""]))

    def print_foot(self, text: str) -> None:
        """Print nothing: the last line is about the command."""


class Pager:
    """A sink for text that starts a pager once the text is longer than the screen.

    Args:
        wanted: False writes to stdout only; so does a stdout that is no terminal.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._io = current_io()
        self._command = _find_pager() if wanted and self._io.out_is_terminal else []
        self._held: list[str] = []
        self._lines = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Pager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, text: str) -> None:
        """Write text, unless the reader has left the pager; BrokenPipeError when it does so."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.write(text)
        elif self._command:
            self._held.append(text)
            self._lines += text.count("\n")
            if self._lines >= self._io.height(self._io.out):
                self._start()
        else:
            self._io.out.write(text)

    def close(self) -> None:
        """Write the rest of the text, and wait until the reader leaves the pager."""
        if self._process is None:
            self._flush_held()
            self._io.out.flush()
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        while True:
            with suppress(KeyboardInterrupt):  # Ctrl-C is for the pager, which has the terminal
                self._process.wait()
                return

    def _start(self) -> None:
        self._io.out.flush()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="backslashreplace",
                bufsize=1,
            )
        except OSError:
            note(f"the pager {self._command[0]} cannot be started")
            self._command = []
            self._flush_held()
            return

        held_text = "".join(self._held)
        self._held = []
        self.write(held_text)

    def _flush_held(self) -> None:
        for text in self._held:
            self._io.out.write(text)
        self._held.clear()


def write_at_once(text: str) -> None:
    """Write text to stdout without a pager, for output that continues for long."""
    out = current_io().out
    out.write(text)
    out.flush()


def _find_pager() -> list[str]:
    named = os.environ.get(PAGER_VARIABLE)
    try:
        command = shlex.split(DEFAULT_PAGER if named is None else named)
    except ValueError:
        command = []
    if not command or command == ["cat"] or os.environ.get("TERM", "dumb") == "dumb":
        return []
    return command if which(command[0]) else []
