"""The commands of `agentctl sessions` that change sessions.

`prune` is a loop over pages of idle sessions: read a page, export its sessions to a verified file,
and request that exactly these are removed if they are still idle.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, BinaryIO

import orjson

from agentctl.cli import options
from agentctl.cli.archives import Archive
from agentctl.cli.durations import parse_days
from agentctl.cli.files import create_directory, creating_file, publish_file
from agentctl.cli.io import current_io
from agentctl.cli.parameters import argument, flag, option
from agentctl.cli.show import columns
from agentctl.cli.show.output import CommandOutput, write_line
from agentctl.cli.show.progress import (
    Counter,
    check_complete,
    report_failures,
    report_import,
    run_all,
    showing_progress,
)
from agentctl.cli.show.table import Column, plain_columns
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import Held, InvalidResponse, NotFound, UsageError
from agentctl.interface.requests import (
    DEFAULT_LOCATOR,
    MAXIMUM_LIMIT,
    BulkDeletion,
    Page,
    SessionLocator,
)
from agentctl.interface.requests.administration import IdleFilter, PruneRequest
from agentctl.interface.requests.files import FileFilter
from agentctl.interface.requests.lists import read_pages
from agentctl.records.kinds import Record
from agentctl.records.text import format_bytes, format_count

if TYPE_CHECKING:
    from agentctl.interface.operations import Operations

_PRUNED = [
    *plain_columns("sessions", "runs"),
    Column("bytes", lambda record: format_bytes(record["bytes"])),
    *plain_columns("oldest", "newest", "held", "busy", "used"),
    Column("files", lambda record: ", ".join(record["files"])),
]


@with_target(only_locally="run it on the machine of the database, with --config FILE")
async def import_sessions(
    target: Target,
    out: CommandOutput,
    file: Annotated[Path, argument("FILE", "File of sessions export (- is stdin)")],
    dry_run: bool = flag("--dry-run", "Check the file and the database without changing anything"),
    db: options.DbId = None,
) -> None:
    """Import sessions with all their runs.

    Reads the formats jsonl and json of `sessions export`. The whole file is checked before the
    first change. Existing sessions and runs are skipped, so you can repeat an import. Works only
    locally. Exit code 1 if sessions or runs were left out; stderr lists them.
    """
    from agentctl.admin.imports.exports import SessionFile
    from agentctl.store.databases import open_database
    from agentctl.store.outbox import Outbox

    assert target.local is not None
    entry = options.find_databases(target.local.settings, db)[0]
    name = "stdin" if str(file) == "-" else str(file)

    counter = Counter("sessions checked")
    with _opening(file) as stream:
        sessions = SessionFile(stream, name, target.local.settings)
        async with showing_progress(counter):
            total = await sessions.check(counter.show)

            database = open_database(entry, create=not dry_run)
            database.outbox = Outbox(target.local.settings)
            try:
                report = await sessions.store(database, total, counter.show, dry_run=dry_run)
            finally:
                await database.close()

    report_import(report, out)
    if dry_run:
        note(f"nothing was changed: {name} would be imported {target.place}")
    else:
        target.report_done(f"imported {name}")
    check_complete(report)


@contextmanager
def _opening(file: Path) -> Iterator[IO[bytes]]:
    """Open a file, `-` for stdin, that can be read several times."""
    from tempfile import TemporaryFile

    with ExitStack() as stack:
        stream: IO[bytes]
        try:
            if str(file) == "-":
                stream = current_io().stdin.buffer
            else:
                stream = stack.enter_context(file.open("rb"))
            if str(file) == "-" or not stream.seekable():
                copy = stack.enter_context(TemporaryFile())
                shutil.copyfileobj(stream, copy)
                stream = copy
        except OSError as failure:
            cause = (failure.strerror or "reading failed").lower()
            raise UsageError(f"{file} cannot be read", cause=cause) from None
        yield stream


@with_target(without=("type", "user_id"))
async def rename_session(
    target: Target,
    out: CommandOutput,
    session_id: options.SessionId,
    name: Annotated[str, argument("NAME", "New name")],
    where: SessionLocator = DEFAULT_LOCATOR,
) -> None:
    """Rename a session."""
    document = await target.operations.sessions.rename(session_id, name, where, view="summary")
    out.show_record(document, columns.RENAMED, "session_id")
    target.report_done(f"renamed session {session_id}")


@with_target(without=("type", "user_id"))
async def summarize_session(
    target: Target,
    out: CommandOutput,
    session_id: options.SessionId,
    where: SessionLocator = DEFAULT_LOCATOR,
) -> None:
    """Summarize a session now."""
    async with showing_progress("summarizing the session"):
        document = await target.operations.sessions.summarize(session_id, where, view="summary")
    out.show_record(document, columns.SUMMARIZED, "session_id")
    target.report_done(f"summarized session {session_id}")


@with_target()
async def hold_sessions(
    target: Target,
    session_ids: options.SessionIds,
    reason: Annotated[str, option("--reason", "TEXT", "Reason, shown to administrators")],
    db: options.DbId = None,
) -> None:
    """Hold sessions, so that nothing deletes them until they are released.

    Only administrators can hold sessions, and see who holds them and why.
    """

    async def hold(session_id: str) -> None:
        await target.operations.sessions.hold(session_id, reason, SessionLocator(db_id=db))
        target.report_done(f"held session {session_id}")

    report_failures(session_ids, await run_all(session_ids, hold))


@with_target()
async def release_sessions(
    target: Target, session_ids: options.SessionIds, db: options.DbId = None
) -> None:
    """Release held sessions, so that they can be deleted again."""

    async def release(session_id: str) -> None:
        await target.operations.sessions.release(session_id, SessionLocator(db_id=db))
        target.report_done(f"released session {session_id}")

    report_failures(session_ids, await run_all(session_ids, release))


@dataclass(slots=True)
class PruneTotals:
    """Sums over sessions."""

    sessions: int = 0
    runs: int = 0
    bytes: int = 0

    oldest: str | None = None
    """Time of the earliest last use, RFC 3339; None without sessions."""

    newest: str | None = None
    """Time of the latest last use."""

    left: Tally[str] = field(default_factory=Tally)
    """Numbers of sessions that are not removed, by `held`, `busy` and `used`."""

    def add(self, session: Record) -> None:
        """Add a session to the sums."""
        self.sessions += 1
        self.runs += session["run_count"]
        self.bytes += session["bytes"]
        self.oldest = min(filter(None, (self.oldest, session["updated_at"])))
        self.newest = max(filter(None, (self.newest, session["updated_at"])))

    def build_record(self, files: Sequence[Path] = ()) -> Record:
        """Return the record of the command."""
        return {
            "sessions": self.sessions,
            "runs": self.runs,
            "bytes": self.bytes,
            "oldest": self.oldest,
            "newest": self.newest,
            "held": self.left["held"],
            "busy": self.left["busy"],
            "used": self.left["used"],
            "files": [str(file) for file in files],
        }


@with_target()
async def prune_sessions(
    target: Target,
    out: CommandOutput,
    idle: Annotated[
        str, option("--idle", "DAYS", "Time since the last use of a session, such as 90d")
    ],
    choice: options.ComponentChoice = options.NO_CHOICE,
    dry_run: bool = flag("--dry-run", "Show what would be removed without removing it"),
    export: Path | None = option(
        "--export", "FOLDER", "Write the sessions to files in this folder before they are removed"
    ),
    yes: options.Yes = False,
    db: options.DbId = None,
) -> None:
    """Remove sessions that have not been used for some days, with their runs.

    Held sessions and sessions with a live or paused run are kept. With --export, each file is
    written to disk and read back before its sessions are removed; `sessions import` reads it. A ZIP
    archive with the same name contains the files of the sessions. You can interrupt and repeat the
    command. Only administrators can prune sessions.
    """
    kind, component_id = choice.resolve() or (None, None)
    idle_filter = IdleFilter(parse_days(idle), kind, component_id, db)
    if dry_run and export is not None:
        raise UsageError("--dry-run and --export cannot be used together")

    # Only a dry run and the question need the totals: to count them reads every page.
    idle_totals = PruneTotals()
    if dry_run or not yes:
        if not dry_run:
            check_confirmable(yes=yes)
        idle_totals = await _count(target, idle_filter)
        if dry_run:
            out.show_record(idle_totals.build_record(), _PRUNED, "sessions")
            note("nothing was removed")
            return

        size = format_bytes(idle_totals.bytes)
        sessions = format_count(idle_totals.sessions, "session")
        what = f"{sessions} with {format_count(idle_totals.runs, 'run')} ({size})"
        how = "without an export" if export is None else f"after an export to {export}"
        confirm(f"Remove {what} {how}, {target.place}?", yes=yes)

    folder = None if export is None else ExportFolder(export, target.operations)
    removed = PruneTotals()
    try:
        await _prune(target, idle_filter, folder, removed, idle_totals.sessions or None)
    except BaseException:
        note(f"removed {format_count(removed.sessions, 'session')}")
        raise

    files = [] if folder is None else folder.files
    out.show_record(removed.build_record(files), _PRUNED, "sessions")


async def _count(target: Target, filter: IdleFilter) -> PruneTotals:
    """Return the totals of the idle sessions, and the numbers of sessions that are kept."""
    totals = PruneTotals()
    counter = Counter("idle sessions counted")
    units = read_pages(target.operations.sessions.list_idle, filter)
    async with showing_progress(counter), aclosing(units):
        async for rows in units:
            for row in rows:
                if row["state"] == "idle":
                    totals.add(row)
                else:
                    totals.left[row["state"]] += 1
            counter.done = totals.sessions
    return totals


async def _prune(
    target: Target,
    filter: IdleFilter,
    folder: ExportFolder | None,
    removed: PruneTotals,
    total: int | None,
) -> None:
    """Remove the idle sessions page by page, after an export of each page to a folder.

    Args:
        removed: receives the totals of the removed sessions, also if the command is interrupted.
        total: number of idle sessions, for the progress; None if they were not counted.
    """
    counter = Counter("sessions removed", total)
    where = SessionLocator(db_id=filter.db_id)
    units = read_pages(target.operations.sessions.list_idle, filter)
    async with showing_progress(counter), aclosing(units):
        async for rows in units:
            idle_rows = {row["session_id"]: row for row in rows if row["state"] == "idle"}
            removed.left.update(row["state"] for row in rows if row["state"] != "idle")

            session_ids = list(idle_rows)
            if folder is not None and session_ids:
                session_ids = await folder.write(list(idle_rows.values()), where)
            if not session_ids:
                continue

            # The server checks each session again: a session that was used meanwhile is kept.
            request = PruneRequest(filter.idle_days, tuple(session_ids), filter.db_id)
            removal = (await target.operations.sessions.prune(request)).value
            for session_id in removal["removed"]:
                removed.add(idle_rows[session_id])
            for state in ("held", "busy", "used"):
                removed.left[state] += len(removal[state])
            counter.done = removed.sessions


@with_target()
async def delete_sessions(
    target: Target,
    session_ids: options.SessionIds,
    yes: options.Yes = False,
    cancel: bool = flag("--cancel", "Cancel live runs first; deletes one session at a time"),
    dry_run: bool = flag("--dry-run", "List the sessions without deleting them"),
    db: options.DbId = None,
) -> None:
    """Delete sessions and their runs.

    Several sessions are deleted together: either all of them or none.
    """
    where = SessionLocator(db_id=db)
    if dry_run:
        for session_id in session_ids:
            await target.operations.sessions.get(session_id, where, view="summary")
        for session_id in session_ids:
            write_line(session_id)
        return

    async def delete(session_id: str) -> None:
        with _naming_release(target, db):
            await target.operations.sessions.delete(session_id, where, cancel=cancel)
        target.report_done(f"deleted session {session_id}")

    is_one = len(session_ids) == 1
    what = f"session {session_ids[0]}" if is_one else format_count(len(session_ids), "session")
    confirm(f"Delete {what} with all runs, {target.place}?", yes=yes)
    if cancel or is_one:
        report_failures(session_ids, await run_all(session_ids, delete))
        return

    with _naming_release(target, db):
        await target.operations.sessions.delete_several(BulkDeletion(tuple(session_ids), db))
    target.report_done(f"deleted {what}")


@contextmanager
def _naming_release(target: Target, db: str | None) -> Iterator[None]:
    """Name the command that releases the sessions in the error about held sessions."""
    try:
        yield
    except Held as failure:
        failure.hint = target.build_release_hint(failure.session_ids, db)
        raise


class ExportFolder:
    """A folder that receives files of sessions, each with a line for a session.

    The files of these sessions are in a ZIP archive with the same name. A file is written as
    `NAME.part`, read again and compared, and only then named `NAME`: a file with a name is whole,
    and on the disk.
    """

    def __init__(self, folder: Path, operations: Operations) -> None:
        create_directory(folder, 0o700)
        self._folder = folder
        self._operations = operations
        self._prefix = f"sessions-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        self._units = 0
        self.files: list[Path] = []

    async def write(self, sessions: Sequence[Record], where: SessionLocator) -> list[str]:
        """Write a file of some sessions, and return the ids of the sessions in it.

        A session that was deleted in the meantime is left out.

        Args:
            sessions: records with `session_id` and `run_count`.

        Raises:
            Conflict, UsageError: the file cannot be written.
            InvalidResponse: the file does not have what it should have; it is removed.
        """
        self._units += 1
        path = self._folder / f"{self._prefix}-{self._units:05}.jsonl"
        part_path = path.with_name(f"{path.name}.part")

        digest = hashlib.sha256()
        written_sessions = list[Record]()
        with creating_file(part_path) as file:
            for session in sessions:
                with suppress(NotFound):
                    async for piece in self._operations.sessions.export(
                        session["session_id"], where
                    ):
                        file.write(piece)
                        digest.update(piece)
                    written_sessions.append(session)

        try:
            if _hash_file(part_path) != digest.digest():
                raise _build_export_error(path, "its content differs from what was written")
            _check_sessions(part_path, written_sessions)
            await self._write_files(path.with_suffix(".zip"), written_sessions, where)
        except BaseException:
            part_path.unlink(missing_ok=True)
            raise

        # Only a complete file gets its name, and its sessions are removed after that.
        publish_file(part_path, path)
        self.files.append(path)
        return [session["session_id"] for session in written_sessions]

    async def _write_files(
        self, path: Path, sessions: Sequence[Record], where: SessionLocator
    ) -> None:
        """Write the archive of the files of some sessions, if they have any."""
        file_filters = list[FileFilter]()
        for session in sessions:
            first_file = FileFilter(None, session["session_id"], where.db_id, Page(limit=1))
            if (await self._operations.files.list(first_file)).value["data"]:
                file_filters.append(replace(first_file, page=Page(limit=MAXIMUM_LIMIT)))
        if not file_filters:
            return

        archive = Archive(path, {"format": "agentctl-files/1"}, Counter("files exported"))
        await archive.write(archive.list_files(self._operations, file_filters))
        self.files.append(path)
        if archive.missing:
            missing = format_count(len(archive.missing), "file")
            note(f"the bytes of {missing} are missing: {path} names them")


def _hash_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _check_sessions(path: Path, sessions: Sequence[Record]) -> None:
    """Check that a file has these sessions, each with all runs that the server has counted."""
    with path.open("rb") as file:
        sizes = list(_read_sizes(file))

    ids_in_file = [session_id for session_id, _ in sizes]
    if ids_in_file != [session["session_id"] for session in sessions]:
        raise _build_export_error(path, "it does not have the sessions that were exported")

    for (session_id, run_count), session in zip(sizes, sessions, strict=True):
        if run_count < session["run_count"]:
            cause = f"session {session_id} has {run_count} of {session['run_count']} runs in it"
            raise _build_export_error(path, cause)


def _read_sizes(file: BinaryIO) -> Iterator[tuple[object, int]]:
    """Yield the id and the number of runs of each session of a file; None for another line."""
    for line in file:
        try:
            record = orjson.loads(line)
            yield record["session"]["session_id"], len(record["runs"])
        except (ValueError, KeyError, TypeError):
            yield None, 0


def _build_export_error(path: Path, cause: str) -> InvalidResponse:
    return InvalidResponse(
        f"The export {path.name} is not whole",
        cause=cause,
        hint="none of its sessions was removed; run the command again",
    )
