"""`agentctl sessions list`, `get`, `runs` and `export`: read sessions.

`get --follow` draws a live run from its events, each part once it is complete. Runs that work at
the same time are shown one after the other, in their order in the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from agentctl.cli.archives import OLDEST_FIRST, Archive, Member, name_with_ending
from agentctl.cli.durations import microseconds_ago
from agentctl.cli.files import creating_file
from agentctl.cli.follow import Retries, WatchedRun
from agentctl.cli.lists import (
    AgeOptions,
    ListOutput,
    ListWriter,
    WatchedOutput,
    build_age_option,
    note_unindexed,
)
from agentctl.cli.options import OptionalSessionIds, SessionId, ToFile
from agentctl.cli.parameters import flag, option
from agentctl.cli.show import columns
from agentctl.cli.show.output import write_bytes
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.show.transcript.pages import (
    Pager,
    TranscriptOutput,
    TranscriptPage,
    create_page,
    print_transcript,
    write_at_once,
)
from agentctl.cli.target import Target, with_target
from agentctl.errors import Forbidden, TooManyRequests, Unavailable, UsageError
from agentctl.interface.requests import (
    DEFAULT_LOCATOR,
    FIRST_RUNS,
    MAXIMUM_LIMIT,
    Page,
    RunView,
    SessionFilter,
    SessionLocator,
    SessionRunsQuery,
)
from agentctl.interface.requests.files import FileFilter
from agentctl.interface.requests.lists import read_rows
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import Record, component_of_run
from agentctl.records.runs import FINAL_STATUSES
from agentctl.records.sessions import ExportFormat, SessionView
from agentctl.records.text import format_count
from agentctl.transcripts.model import build_drawn_run, clean_line
from agentctl.transcripts.runs import CausesReader, SessionRuns, read_members

if TYPE_CHECKING:
    from agentctl.cli.show.transcript.live import LiveTranscript

LAST_USED = SessionFilter(page=Page(sort_by="updated_at"))

DEFAULT_LAST_RUNS = 20
"""Runs of a transcript."""

Found = tuple[str, SessionLocator]
"""A session to export: its id, and where it is."""

POLL_SECONDS = 1.0
"""Seconds between two looks for new runs."""


@dataclass(frozen=True, slots=True)
class SessionAges(AgeOptions):
    """The options for the age of sessions."""

    idle: Annotated[str | None, build_age_option("--idle", "last used more")] = None
    used_within: Annotated[str | None, build_age_option("--used-within", "last used less")] = None

    def limit(self, filter: Any) -> Any:
        """Return a filter with the times of the ages, counted from now."""
        return replace(
            AgeOptions.limit(self, filter),
            updated_after=microseconds_ago("--used-within", self.used_within),
            updated_before=microseconds_ago("--idle", self.idle),
        )


NO_SESSION_AGES = SessionAges()


_LIST_ORDER = (
    "type", "component_id", "user_id", "session_name", "search", "status",
    "older_than", "newer_than", "idle", "used_within", "metadata", "tag", "error",
    "limit", "page", "cursor", "sort_by", "sort_order", "all_pages", "db_id", "table", ...,
)  # fmt: skip
"""The options of `sessions list` in the order of its help."""


@with_target(order=_LIST_ORDER, reads="stored")
async def list_sessions(
    target: Target,
    out: WatchedOutput,
    filter: SessionFilter = LAST_USED,
    ages: SessionAges = NO_SESSION_AGES,
) -> None:
    """List sessions, most recently used first.

    --search finds sessions whose messages, answers or name contain all words, newest first; `refu*`
    finds words that begin with refu.
    """
    out.check()
    read = ages.limit_each(target.operations.sessions.list)

    def note_rest(document: Document[Any]) -> None:
        if filter.search is not None:
            note_unindexed(target, document, "session")

    listed = filter
    shown = columns.SESSIONS
    if filter.search is not None:
        listed = replace(filter, page=replace(filter.page, sort_by="created_at"))
        shown = columns.FOUND_SESSIONS
    await out.show(target, read, listed, shown, "session_id", note_rest=note_rest)


_GET_ORDER = (
    "session_id", "last", "all", "full", "members", "follow", "raw", "local_time", "no_pager", ...,
)  # fmt: skip
"""The arguments and options of `sessions get` in the order of its help."""


@with_target(order=_GET_ORDER, reads="stored", service_flags=("follow",))
async def get_session(
    target: Target,
    out: TranscriptOutput,
    session_id: SessionId,
    last: int | None = option(
        "--last",
        "NUMBER",
        f"Number of runs to show, counted from the end (default: {DEFAULT_LAST_RUNS})",
        min=1,
    ),
    all: bool = flag("--all", "Show all runs"),
    follow: bool = flag("--follow", "Continue with live and new runs until Ctrl-C"),
    where: SessionLocator = DEFAULT_LOCATOR,
) -> None:
    """Show one session as a transcript.

    The formats json, jsonl and tsv print the record of the session. Ctrl-C during --follow does not
    stop the runs.
    """
    form = out.resolve(last=last is not None, all=all, follow=follow)
    view: SessionView = "full" if form is None else "summary"
    document = await target.operations.sessions.get(session_id, where, view=view)
    if form is None:
        out.show_record(document, columns.SESSION, "session_id")
        return

    look = out.create_look(form)
    number = None if all else last or DEFAULT_LAST_RUNS
    if follow:
        page = create_page(form, look, write_at_once)
        follower = _SessionFollower(target, document.value, where, page, look.run_view)
        await follower.follow(number)
        return

    with Pager(wanted=not out.no_pager) as pager:
        page = create_page(form, look, pager.write)
        await print_transcript(
            target.operations, document.value, where, page, number, look.run_view
        )


class _SessionFollower:
    """Prints a session and its newest runs; then its live and new runs, until an interrupt."""

    def __init__(
        self,
        target: Target,
        session: Record,
        where: SessionLocator,
        page: TranscriptPage,
        form: RunView,
    ) -> None:
        self._target = target
        self._session = session
        self._where = where
        self._page = page
        self._form = form
        self._session_id = str(session["session_id"])
        self._runs = SessionRuns(target.operations, self._session_id, where, form)

        # True once the events of a run that is partly drawn cannot be read.
        self._is_broken = False

    async def follow(self, last: int | None) -> None:
        """Print the session with its newest `last` runs, None: all, and go on. The runs go on."""
        part = await self._runs.find_last(last, self._session)
        self._page.print_session(self._session, part.describe())
        after = part.after
        number = part.first
        retries = Retries(self._target)
        try:
            while True:
                try:
                    async for run in self._runs.read(after):
                        await self._show_run(run, number)
                        after = str(run["run_id"])
                        number += 1

                    retries.reset()
                    async with showing_progress("waiting for the next run, Ctrl-C ends this"):
                        await asyncio.sleep(POLL_SECONDS)
                except (Unavailable, TooManyRequests) as failure:
                    if self._is_broken:
                        raise
                    await retries.wait(failure, "trying again")
        except asyncio.CancelledError:
            note(f"interrupted: session {self._session_id} and its runs continue")
            raise

    async def _show_run(self, run: Record, number: int) -> None:
        from agentctl.cli.show.transcript.draw import INDENT, Printer
        from agentctl.cli.show.transcript.live import LiveTranscript

        if run["status"] not in FINAL_STATUSES:
            if isinstance(self._page, Printer):
                self._page.start_run(run, number)
                kind, _ = component_of_run(run)
                lines = LiveTranscript(self._page, kind, str(run["run_id"]), indent=INDENT)
                await self._follow_events(run, lines)
                self._page.end_run(build_drawn_run(await self._wait_for_end(run)))
                return
            run = await self._wait_for_end(run)

        children = await read_members(self._target.operations, run, self._where, self._form)
        drawn = build_drawn_run(run, children)
        await CausesReader(self._target.operations, self._where.db_id).add_to(drawn)
        self._page.print_run(drawn, number)

    async def _follow_events(self, run: Record, lines: LiveTranscript) -> None:
        """Draw a live run by its events; by its record if the caller may not follow it."""
        followed = WatchedRun(self._target, str(run["run_id"]), db=self._where.db_id)
        followed.use(run)
        try:
            await followed.follow("text", lines)
        except Unavailable:
            self._is_broken = True
            raise
        except Forbidden as refused:
            note(f"run {run['run_id']} is shown when it has ended: {refused.detail}")
            lines.conclude(await self._wait_for_end(run))
        finally:
            lines.flush()

    async def _wait_for_end(self, run: Record) -> Record:
        read = self._target.operations.sessions.get_run
        run_id = str(run["run_id"])
        while True:
            document = await read(self._session_id, run_id, self._where, form=self._form)
            if document.value["status"] in FINAL_STATUSES:
                return document.value
            async with showing_progress(f"waiting for the end of run {run_id}"):
                await asyncio.sleep(POLL_SECONDS)


@with_target(
    without=("order",), order=("session_id", "limit", "after", "all_pages", ...), reads="stored"
)
async def list_session_runs(
    target: Target, out: ListOutput, session_id: SessionId, query: SessionRunsQuery = FIRST_RUNS
) -> None:
    """List the runs of a session, oldest first."""
    query = replace(query, form=out.run_view)
    if out.all_pages:

        async def read(after: str | None) -> Document[Any]:
            part = replace(query, limit=MAXIMUM_LIMIT, after=after)
            runs: Any = (await target.operations.sessions.list_runs(session_id, part)).value
            following = runs[-1]["run_id"] if len(runs) == MAXIMUM_LIMIT else None
            return build_document({"data": runs, "meta": {"next_cursor": following}})

        writer = ListWriter(out, columns.RUNS_OF_SESSION, "run_id", is_array=True)
        await writer.write_pages(target, read, query.after, "--after")
        return
    document = await target.operations.sessions.list_runs(session_id, query)
    out.show_list(document, columns.RUNS_OF_SESSION, "run_id")
    if out.format != "json" and len(document.value) == query.limit:
        shown = format_count(query.limit, "run")
        note(f"showing {shown}; next page: --after {document.value[-1]['run_id']}")


@with_target()
async def export_sessions(
    target: Target,
    session_ids: OptionalSessionIds = None,
    all: bool = flag("--all", "Export every session that matches the filters"),
    file_format: ExportFormat = option(
        "--format", "FORMAT", "jsonl, json or markdown", default="jsonl"
    ),
    model_calls: bool = flag("--model-calls", "Add the model calls of each run"),
    with_files: bool = flag("--with-files", "Write a ZIP archive that includes the files"),
    to_file: ToFile = None,
    where: SessionLocator = DEFAULT_LOCATOR,
) -> None:
    """Export sessions with all their runs.

    With --with-files, FILE is a ZIP archive of the export, the files of the sessions, and
    manifest.json, which lists missing files; if files are missing, the exit code is 1.

    jsonl has one line per session, `{"session": …, "runs": […]}`; json is an array of these
    objects, and markdown is a transcript. A file is written completely or not at all.
    """
    if bool(session_ids) is all:
        raise UsageError("give a SESSION_ID, or --all", hint="--all takes filters such as --user")

    counter = Counter("sessions exported", len(session_ids) if session_ids else None)
    sessions = _find_sessions(target, session_ids, where)

    if with_files:
        if to_file is None or str(to_file) == "-":
            raise UsageError("--with-files needs --to-file FILE")
        archive = Archive(to_file, {"format": "agentctl-sessions/1"}, counter)
        await archive.write(_list_members(archive, target, sessions, file_format, model_calls))
        note(f"wrote {format_count(counter.done, 'session')} to {to_file}")
        archive.check_missing()
        return

    parts = _read_sessions(target, sessions, file_format, model_calls)
    async with aclosing(sessions), aclosing(parts):
        if to_file is None or str(to_file) == "-":
            async for part, _ in parts:
                write_bytes(part)
            return

        with creating_file(to_file) as file:
            async with showing_progress(counter):
                async for part, count in parts:
                    file.write(part)
                    counter.done += count
    note(f"wrote {format_count(counter.done, 'session')} to {to_file}")


async def _list_members(
    archive: Archive,
    target: Target,
    sessions: AsyncGenerator[Found],
    file_format: ExportFormat,
    model_calls: bool,
) -> AsyncGenerator[Member]:
    """Yield the export, the list of the files of its sessions, and the bytes of each."""
    found: list[FileFilter] = []
    ending = "md" if file_format == "markdown" else file_format
    parts = _read_sessions(target, sessions, file_format, model_calls, found)
    yield f"sessions.{ending}", parts
    members = archive.list_files(target.operations, found)
    async with aclosing(members):
        async for member in members:
            yield member


async def _find_sessions(
    target: Target, session_ids: list[str] | None, where: SessionLocator
) -> AsyncGenerator[Found]:
    for session_id in session_ids or ():
        yield session_id, where
    if session_ids:
        return
    wanted = SessionFilter(where, page=OLDEST_FIRST)
    async for row in read_rows(target.operations.sessions.list, wanted):
        yield row["session_id"], replace(where, user_id=row.get("user_id"))


async def _read_sessions(
    target: Target,
    sessions: AsyncGenerator[Found],
    file_format: ExportFormat,
    model_calls: bool,
    found: list[FileFilter] | None = None,
) -> AsyncGenerator[tuple[bytes, int]]:
    """Yield the parts of an export, each with the number of sessions that end with it.

    Args:
        found: receives the filter of the files of each session; Markdown has links to them then.
    """
    is_array = file_format == "json"
    one: ExportFormat = "jsonl" if is_array else file_format
    before = b"[" if is_array else b""
    done = 0
    async for session_id, where in sessions:
        parts = target.operations.sessions.export(
            session_id, where, format=one, model_calls=model_calls
        )
        async for part in parts:
            yield before + (part.removesuffix(b"\n") if is_array else part), 0
            before = b""

        if found is not None:
            files = FileFilter(where.user_id, session_id, where.db_id, page=OLDEST_FIRST)
            found.append(files)
            if file_format == "markdown":
                yield await _link_files(target, files), 0

        before = b",\n" if is_array else b""
        done = done + 1
        yield b"", 1
    if is_array:
        yield b"]\n" if done else b"[]\n", 0


async def _link_files(target: Target, files: FileFilter) -> bytes:
    lines = []
    async with aclosing(read_rows(target.operations.files.list, files)) as rows:
        async for row in rows:
            name = "".join(f"\\{each}" if each in "\\[]`*_<>&!" else each for each in row["name"])
            lines.append(f"- [{clean_line(name)}]({name_with_ending(row)})\n")
    return f"## Files\n\n{''.join(lines)}\n".encode() if lines else b""
