"""How a configured database is: there, of which schema, how large.

What a database lacks of the newest schema, and giving it that.

Looking for damage in a database: its pages, its schema, and what must hold between its rows.

Nothing is changed, and nobody waits: all of it is read on snapshots.

A copy of a database in a file.

How a PostgreSQL database is copied and restored: by its own programs.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agentctl.config.databases import display_url, is_sqlite_url, sqlite_path
from agentctl.config.settings import Database
from agentctl.errors import AgentctlError, Unavailable
from agentctl.records.times import format_rfc3339
from agentctl.service.doctor.finding import Finding, from_failure, note, ok, wrong
from agentctl.store import migrating
from agentctl.store.database import Work
from agentctl.store.migrating import get_engine, read_unbounded, read_version
from agentctl.store.repositories import integrity
from agentctl.store.schema import (
    MIGRATE_COMMAND,
    SCHEMA_VERSION,
    Migration,
    build_newer_schema,
    check_version,
    list_pending,
    load_migrations,
)
from agentctl.store.sizes import read_sizes
from agentctl.store.sqlite.backup import ReportCopyProgress
from agentctl.store.sqlite.backup import back_up as copy

__all__ = [
    "DatabaseState",
    "DatabaseStatus",
    "MigrationPlan",
    "ReportProgress",
    "back_up",
    "check_integrity",
    "format_dump_command",
    "format_restore_command",
    "migrate",
    "plan_migration",
    "read_database_status",
]

DatabaseState = Literal["ok", "missing", "old", "new", "unavailable"]


@dataclass(slots=True)
class DatabaseStatus:
    """A configured database, for people and programs.

    Attributes:
        url: where it is; it holds no password.
        schema: number of its last migration; None when there is none, or it cannot be asked.
        pending: names of the migrations that it lacks.
        bytes, wal_bytes: of the file, or of the tables; of the write-ahead log of a file.
        sessions, runs: rows, estimated where they are very many.
        failure: why it cannot be used.
    """

    db_id: str
    engine: str
    url: str
    state: DatabaseState = "ok"
    schema: int | None = None
    newest: int = SCHEMA_VERSION
    pending: list[str] = field(default_factory=list)
    bytes: int | None = None
    wal_bytes: int | None = None
    sessions: int | None = None
    runs: int | None = None
    estimated: bool = False
    failure: AgentctlError | None = None

    def record(self) -> dict[str, object]:
        """What is shown: everything but how the failure is raised."""
        names = [name for name in self.__slots__ if name != "failure"]
        failure = None if self.failure is None else self.failure.detail
        return {name: getattr(self, name) for name in names} | {"problem": failure}


async def read_database_status(entry: Database) -> DatabaseStatus:
    """Look at a database; what keeps it from being used is told as `failure`, not raised."""
    status = DatabaseStatus(entry.id, get_engine(entry), entry.url)
    try:
        status.schema = await read_version(entry)
        if status.schema is None:
            status.state = "missing"
            status.pending = [each.name for each in load_migrations(get_engine(entry))]
            status.failure = _build_missing_error(entry)
            return status
        sizes = await read_sizes(entry)
        status.bytes, status.wal_bytes, status.sessions, status.runs, status.estimated = sizes
        _check_schema(status, entry)
    except AgentctlError as failure:
        status.state, status.failure = "unavailable", failure
    return status


def _check_schema(status: DatabaseStatus, entry: Database) -> None:
    assert status.schema is not None
    status.pending = [each.name for each in list_pending(get_engine(entry), status.schema)]
    try:
        check_version(status.schema, display_url(entry.url))
    except AgentctlError as failure:
        status.state = "old" if status.pending else "new"
        status.failure = failure


def _build_missing_error(entry: Database) -> Unavailable:
    return Unavailable(
        "There is no database yet",
        cause=f"{display_url(entry.url)} has none",
        command=MIGRATE_COMMAND,
    )


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """What is to be done with a database. `version`: of its schema; None: it is not there."""

    entry: Database
    version: int | None
    migrations: Sequence[Migration]


async def plan_migration(entry: Database) -> MigrationPlan:
    """What a database lacks; nothing is changed.

    Raises:
        SchemaMismatch: it is newer than this code.
        Unavailable: it cannot be used, or is not one of ours.
    """
    engine, version = migrating.get_engine(entry), await migrating.read_version(entry)
    if version is None:
        return MigrationPlan(entry, None, load_migrations(engine))
    if version > SCHEMA_VERSION:
        raise build_newer_schema(version, display_url(entry.url))
    return MigrationPlan(entry, version, list_pending(engine, version))


async def migrate(plan: MigrationPlan, applied: Callable[[MigrationPlan, Migration], None]) -> None:
    """Do it. What another process has done meanwhile is not done again.

    Args:
        plan: of `plan_of`.
        applied: is told of each migration that this process has applied.

    Raises: as `plan_of`.
    """
    await migrating.migrate(plan.entry, lambda migration: applied(plan, migration))


ReportProgress = Callable[[str, int, int | None], None]
"""Is told what is looked at, how far that is, and of how much."""

RESTORE = "restore it from a backup (agentctl db backup makes them)"
_CHANGED_BY_HAND = (
    "find out who changed it by hand; agentctl runs doctor repairs what can be repaired"
)

PAGE_SIZE = 200
"""Sessions that are looked at in one read."""


async def check_integrity(entry: Database, at: ReportProgress) -> AsyncIterator[Finding]:
    """Everything about the soundness of one database; it reads all of it, which may take long."""
    check = f"database {entry.id}"
    try:
        version = await read_version(entry)
        if version is None:
            yield wrong(check, f"there is none at {display_url(entry.url)}", MIGRATE_COMMAND)
            return
        if is_sqlite_url(entry.url):
            async for finding in _check_file(entry, check, version, at):
                yield finding
        else:
            async for finding in _check_server(entry, check, version):
                yield finding
        check_version(version, display_url(entry.url))
        async for finding in _check_rows(entry, check, at):
            yield finding
    except AgentctlError as failure:
        yield from_failure(check, failure)


async def _check_file(
    entry: Database, check: str, version: int, at: ReportProgress
) -> AsyncIterator[Finding]:
    from agentctl.store.sqlite import inspect

    path = sqlite_path(entry.url)
    at("pages read", 0, None)
    damage = await inspect.find_damage(path)
    for each in damage:
        yield wrong(check, f"it is damaged: {each}", RESTORE)
    if not damage:
        yield ok(check, "no page of it is damaged")
    dangling = await inspect.find_dangling_rows(path)
    for table, rows in dangling:
        yield wrong(check, f"{rows} rows of {table} refer to what is not there", _CHANGED_BY_HAND)
    differences = await inspect.find_schema_differences(path, version)
    for text, besides in differences:
        if besides:
            yield note(check, text)
        else:
            yield wrong(check, text, RESTORE)
    if not any(not besides for _, besides in differences):
        yield ok(check, f"its schema is as the migrations make it, version {version}")


async def _check_server(entry: Database, check: str, version: int) -> AsyncIterator[Finding]:
    from agentctl.store.postgres.connection import connect, to_public_error
    from agentctl.store.postgres.schema import find_schema_differences

    try:
        connection = await connect(entry)
        try:
            found = await find_schema_differences(connection, version)
        finally:
            await connection.close()
    except Exception as error:
        raise to_public_error(error, entry.id) from None
    for text in found:
        yield wrong(check, text, RESTORE)
    if not found:
        yield ok(check, f"its schema is as the migrations make it, version {version}")


async def _check_rows(entry: Database, check: str, at: ReportProgress) -> AsyncIterator[Finding]:
    read = partial(read_unbounded, entry)
    at("tables searched", 0, None)
    broken = await read(integrity.find_violations())
    found = [(f"{each.what}: {', '.join(each.ids)}, ...") for each in broken]
    found += await _check_sessions(read, at)
    for text in found:
        yield wrong(check, text, _CHANGED_BY_HAND)
    if not found:
        yield ok(check, "the counters of its sessions are those of their runs")


async def _check_sessions(
    read: Callable[[Work[Any]], Awaitable[Any]], at: ReportProgress
) -> list[str]:
    """Walk all sessions; what is wrong, with how many, and one of them."""
    total = await read(integrity.count_sessions())
    last, done, found = "", 0, dict[str, list[str]]()
    while True:
        at("sessions looked at", done, total)
        page = await read(integrity.check_sessions(last, PAGE_SIZE))
        if not page.sessions:
            return [f"{what}: {len(ids)} sessions, {ids[0]} is one" for what, ids in found.items()]
        for what, session_id in page.broken:
            found.setdefault(what, []).append(session_id)
        last, done = page.last, done + page.sessions


async def back_up(entry: Database, file: Path, report: ReportCopyProgress) -> dict[str, object]:
    """Copy a SQLite database while it is used, and check the copy.

    Returns:
        What was written: `sha256` is of all rows, the same for a restored copy.

    Raises:
        Conflict: there is a file of that name.
        Unavailable: there is no database, or it cannot be read, or the file cannot be written.
    """
    from agentctl.errors import Unavailable

    path = sqlite_path(entry.url)
    if await read_version(entry) is None:
        raise Unavailable(
            "There is no database yet", cause=f"{path} has none", command=MIGRATE_COMMAND
        )
    made = await copy(path, file, report)
    return {
        "file": str(made.path),
        "db_id": entry.id,
        "bytes": made.bytes,
        "seconds": round(made.seconds, 3),
        "taken_at": format_rfc3339(made.taken_at),
        "schema": made.schema,
        "sessions": made.tables["sessions"],
        "runs": made.tables["runs"],
        "rows": sum(made.tables.values()),
        "sha256": made.digest,
    }


def format_dump_command(entry: Database, file: Path) -> str:
    """The command that writes a copy to a file. The password is not in it: libpq reads it from
    PGPASSWORD or the file that PGPASSFILE names."""
    words = ["pg_dump", "--format=custom", "--no-owner", f"--file={file}"]
    if entry.search_path:
        words.append(f"--schema={entry.search_path}")
    return shlex.join([*words, f"--dbname={entry.url}"])


def format_restore_command(entry: Database, file: Path) -> str:
    """The command that puts a copy into an empty database."""
    words = ["pg_restore", "--exit-on-error", "--single-transaction", "--no-owner"]
    return shlex.join([*words, f"--dbname={entry.url}", str(file)])
