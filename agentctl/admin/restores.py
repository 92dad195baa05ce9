"""The work of `agentctl db restore` and `db settle`.

Only the local command line uses this module: it works on files and servers directly and asks no
policy.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from dataclasses import replace as replace_fields
from pathlib import Path

from agentctl.admin.databases import check_integrity
from agentctl.admin.file_checks import count_files
from agentctl.config.databases import SQLITE_SCHEME, sqlite_path
from agentctl.config.files import Files
from agentctl.config.settings import Database, Settings
from agentctl.errors import AgentctlError, Conflict, Unavailable
from agentctl.runs.workers.liveness import DEAD_AFTER_SECONDS, WorkerMonitor
from agentctl.runs.workers.recovery import SettledWork, settle
from agentctl.store.blobs import lock_folder
from agentctl.store.databases import Databases, open_sqlite
from agentctl.store.sqlite.backup import CopiedRows
from agentctl.store.sqlite.backup_bytes import (
    FOLDER,
    NO_FILES,
    CopiedFiles,
    ReportCopied,
    copy_bytes,
)
from agentctl.store.sqlite.connection import mark_as_used
from agentctl.store.sqlite.restore import restore as put_in_place
from agentctl.store.sqlite.schema import migrate as migrate_file


async def restore(
    entry: Database,
    backup: Path,
    *,
    replace: bool,
    sha256: str | None,
    files: Files,
    report: ReportCopied,
) -> tuple[dict[str, object], CopiedFiles]:
    """Restore a SQLite database from a backup, migrated and settled.

    Nothing that was under way at the time of the backup continues by itself: it may have ended
    since, with its effects. The bytes of its files are put back before it takes its place.

    Args:
        files: the store; bytes are copied to a folder, and only looked up in a bucket.
        replace: True to move an existing database aside.
        sha256: the hash of all rows that the backup must have; None for any hash.

    Raises:
        Conflict: a process works with the database, it exists and `replace` is False, or the file
            is no backup.
        Unavailable: the backup is damaged, is another backup or the backup of a database that had
            moved, or a file cannot be written.
        SchemaMismatch: the backup has a newer schema than this version works with.
    """
    path = sqlite_path(entry.url)
    settled_work: list[SettledWork] = []
    copied = NO_FILES
    with_folder = files.store == "folder"

    async def prepare(copy_of_backup: Path, rows: CopiedRows) -> None:
        nonlocal copied
        _check_hash(sha256, rows[1])

        try:
            await migrate_file(copy_of_backup, lambda _: None)
            place = replace_fields(entry, url=f"{SQLITE_SCHEME}{copy_of_backup}")
            await _check_rows(place)
            database = open_sqlite(entry.id, copy_of_backup, create=False)
            try:
                settled_work.append(await settle(database))
            finally:
                await database.close()

            if with_folder:
                source = backup.parent / FOLDER
                copied = await copy_bytes(copy_of_backup, source, files.folder, report)
            else:
                copied = await count_files(place, files, report)
        except AgentctlError as error:
            if error.cause is not None:
                error.cause = error.cause.replace(str(copy_of_backup), str(backup))
            raise

    with lock_folder(files.folder) if with_folder else nullcontext():
        (tables, digest), moved = await put_in_place(
            backup,
            path,
            prepare,
            replace=replace,
            report=lambda done: report(f"rows of {entry.id} checked", done, 0),
        )

    mark_as_used(path)

    return {
        "db_id": entry.id,
        "file": str(path),
        "sessions": tables["sessions"],
        "runs": tables["runs"],
        "rows": sum(tables.values()),
        "sha256": digest,
        **asdict(settled_work[0]),
        "moved_to": None if moved is None else str(moved),
        "files": copied.files,
        "files_missing": copied.files_missing,
    }, copied


def _check_hash(expected: str | None, actual: str) -> None:
    """Raise Unavailable if the rows of a backup have another hash than expected."""
    if expected not in (None, actual):
        raise Unavailable(
            "The backup is not the expected one",
            cause=f"its rows have the hash {actual}",
            hint="compare the hash with that of `agentctl db backup`",
        )


async def _check_rows(place: Database) -> None:
    """Raise Unavailable if the rows of a migrated backup do not agree with each other."""
    async for finding in check_integrity(place, lambda *_: None):
        if finding.verdict == "wrong":
            raise Unavailable(
                "The backup is damaged, or was changed by hand",
                cause=f"{finding.what}; nothing was changed",
                hint="restore another one",
            )


async def settle_recovered(settings: Settings, entry: Database) -> dict[str, object]:
    """End the unfinished work of a PostgreSQL database that was recovered to an earlier time.

    It makes the same changes as `restore`. A second call finds nothing to do.

    Raises:
        Conflict: a server works with the database.
        Unavailable: the database does not answer, or does not exist.
        SchemaMismatch: this version does not work with its schema.
    """
    databases = Databases(settings, create=False)
    try:
        judged = await WorkerMonitor(databases).check_all()
        working = [worker for worker, death in judged.items() if death is None]
        if working:
            raise build_servers_work(len(working))
        return {"db_id": entry.id, **asdict(await settle(databases[entry.id]))}
    finally:
        await databases.close()


def build_servers_work(workers: int) -> Conflict:
    """Build the error for a PostgreSQL database with which a number of workers work."""
    return Conflict(
        "A server works with the database",
        cause=f"worker processes with a heartbeat in the last {DEAD_AFTER_SECONDS:.0f} seconds:"
        f" {workers}",
        hint="stop the servers; one that was killed counts for as long as that",
    )
