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

from agentctl.config.databases import is_sqlite, shown_url, sqlite_path
from agentctl.config.settings import Database
from agentctl.errors import AgentctlError, Unavailable
from agentctl.records.times import rfc3339
from agentctl.service.doctor.finding import Finding, note, of_failure, ok, wrong
from agentctl.store import migrating
from agentctl.store.database import Work
from agentctl.store.migrating import engine_of, read_long, stored_version
from agentctl.store.repositories import integrity
from agentctl.store.schema import (
    MIGRATE,
    SCHEMA_VERSION,
    Migration,
    check_version,
    migrations,
    newer,
    pending,
)
from agentctl.store.sizes import sizes_of
from agentctl.store.sqlite.backup import Report
from agentctl.store.sqlite.backup import back_up as copy

__all__ = [
    "At",
    "Plan",
    "State",
    "Status",
    "back_up",
    "check_database",
    "dump_line",
    "migrate",
    "plan_of",
    "restore_line",
    "status_of",
]

State = Literal["ok", "missing", "old", "new", "unavailable"]


@dataclass(slots=True)
class Status:
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
    state: State = "ok"
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


async def status_of(entry: Database) -> Status:
    """Look at a database; what keeps it from being used is told as `failure`, not raised."""
    status = Status(entry.id, engine_of(entry), entry.url)
    try:
        status.schema = await stored_version(entry)
        if status.schema is None:
            status.state = "missing"
            status.pending = [each.name for each in migrations(engine_of(entry))]
            status.failure = _missing(entry)
            return status
        sizes = await sizes_of(entry)
        status.bytes, status.wal_bytes, status.sessions, status.runs, status.estimated = sizes
        _judge(status, entry)
    except AgentctlError as failure:
        status.state, status.failure = "unavailable", failure
    return status


def _judge(status: Status, entry: Database) -> None:
    assert status.schema is not None
    status.pending = [each.name for each in pending(engine_of(entry), status.schema)]
    try:
        check_version(status.schema, shown_url(entry.url))
    except AgentctlError as failure:
        status.state = "old" if status.pending else "new"
        status.failure = failure


def _missing(entry: Database) -> Unavailable:
    return Unavailable(
        "There is no database yet", cause=f"{shown_url(entry.url)} has none", hint=MIGRATE
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with a database. `version`: of its schema; None: it is not there."""

    entry: Database
    version: int | None
    migrations: Sequence[Migration]


async def plan_of(entry: Database) -> Plan:
    """What a database lacks; nothing is changed.

    Raises:
        SchemaMismatch: it is newer than this code.
        Unavailable: it cannot be used, or is not one of ours.
    """
    engine, version = migrating.engine_of(entry), await migrating.stored_version(entry)
    if version is None:
        return Plan(entry, None, migrations(engine))
    if version > SCHEMA_VERSION:
        raise newer(version, shown_url(entry.url))
    return Plan(entry, version, pending(engine, version))


async def migrate(plan: Plan, applied: Callable[[Plan, Migration], None]) -> None:
    """Do it. What another process has done meanwhile is not done again.

    Args:
        plan: of `plan_of`.
        applied: is told of each migration that this process has applied.

    Raises: as `plan_of`.
    """
    await migrating.migrate(plan.entry, lambda migration: applied(plan, migration))


At = Callable[[str, int, int | None], None]
"""Is told what is looked at, how far that is, and of how much."""

RESTORE = "restore it from a backup (agentctl db backup makes them)"
_BY_HAND = "find out who changed it by hand; agentctl runs doctor repairs what can be repaired"

PAGE = 200
"""Sessions that are looked at in one read."""


async def check_database(entry: Database, at: At) -> AsyncIterator[Finding]:
    """Everything about the soundness of one database; it reads all of it, which may take long."""
    check = f"database {entry.id}"
    try:
        version = await stored_version(entry)
        if version is None:
            yield wrong(check, f"there is none at {shown_url(entry.url)}", MIGRATE)
            return
        if is_sqlite(entry.url):
            async for finding in _of_file(entry, check, version, at):
                yield finding
        else:
            async for finding in _of_server(entry, check, version):
                yield finding
        check_version(version, shown_url(entry.url))
        async for finding in _of_rows(entry, check, at):
            yield finding
    except AgentctlError as failure:
        yield of_failure(check, failure)


async def _of_file(entry: Database, check: str, version: int, at: At) -> AsyncIterator[Finding]:
    from agentctl.store.sqlite import inspect

    path = sqlite_path(entry.url)
    at("pages read", 0, None)
    damage = await inspect.damage(path)
    for each in damage:
        yield wrong(check, f"it is damaged: {each}", RESTORE)
    if not damage:
        yield ok(check, "no page of it is damaged")
    dangling = await inspect.dangling(path)
    for table, rows in dangling:
        yield wrong(check, f"{rows} rows of {table} refer to what is not there", _BY_HAND)
    differences = await inspect.differences(path, version)
    for text, besides in differences:
        if besides:
            yield note(check, text)
        else:
            yield wrong(check, text, RESTORE)
    if not any(not besides for _, besides in differences):
        yield ok(check, f"its schema is as the migrations make it, version {version}")


async def _of_server(entry: Database, check: str, version: int) -> AsyncIterator[Finding]:
    from agentctl.store.postgres.connection import connect, public_error
    from agentctl.store.postgres.schema import differences

    try:
        connection = await connect(entry)
        try:
            found = await differences(connection, version)
        finally:
            await connection.close()
    except Exception as error:
        raise public_error(error, entry.id) from None
    for text in found:
        yield wrong(check, text, RESTORE)
    if not found:
        yield ok(check, f"its schema is as the migrations make it, version {version}")


async def _of_rows(entry: Database, check: str, at: At) -> AsyncIterator[Finding]:
    read = partial(read_long, entry)
    at("tables searched", 0, None)
    broken = await read(integrity.loose_ends())
    found = [(f"{each.what}: {', '.join(each.ids)}, ...") for each in broken]
    found += await _walked(read, at)
    for text in found:
        yield wrong(check, text, _BY_HAND)
    if not found:
        yield ok(check, "the counters of its sessions are those of their runs")


async def _walked(read: Callable[[Work[Any]], Awaitable[Any]], at: At) -> list[str]:
    """Walk all sessions; what is wrong, with how many, and one of them."""
    total = await read(integrity.count_sessions())
    last, done, found = "", 0, dict[str, list[str]]()
    while True:
        at("sessions looked at", done, total)
        page = await read(integrity.walk(last, PAGE))
        if not page.sessions:
            return [f"{what}: {len(ids)} sessions, {ids[0]} is one" for what, ids in found.items()]
        for what, session_id in page.broken:
            found.setdefault(what, []).append(session_id)
        last, done = page.last, done + page.sessions


async def back_up(entry: Database, file: Path, report: Report) -> dict[str, object]:
    """Copy a SQLite database while it is used, and check the copy.

    Returns:
        What was written: `sha256` is of all rows, the same for a restored copy.

    Raises:
        Conflict: there is a file of that name.
        Unavailable: there is no database, or it cannot be read, or the file cannot be written.
    """
    from agentctl.errors import Unavailable

    path = sqlite_path(entry.url)
    if await stored_version(entry) is None:
        raise Unavailable("There is no database yet", cause=f"{path} has none", hint=MIGRATE)
    made = await copy(path, file, report)
    return {
        "file": str(made.path),
        "db_id": entry.id,
        "bytes": made.bytes,
        "seconds": round(made.seconds, 3),
        "taken_at": rfc3339(made.taken_at),
        "schema": made.schema,
        "sessions": made.tables["sessions"],
        "runs": made.tables["runs"],
        "rows": sum(made.tables.values()),
        "sha256": made.digest,
    }


def dump_line(entry: Database, file: Path) -> str:
    """The command that writes a copy to a file. The password is not in it: libpq reads it from
    PGPASSWORD or the file that PGPASSFILE names."""
    words = ["pg_dump", "--format=custom", "--no-owner", f"--file={file}"]
    if entry.search_path:
        words.append(f"--schema={entry.search_path}")
    return shlex.join([*words, f"--dbname={entry.url}"])


def restore_line(entry: Database, file: Path) -> str:
    """The command that puts a copy into an empty database."""
    words = ["pg_restore", "--exit-on-error", "--single-transaction", "--no-owner"]
    return shlex.join([*words, f"--dbname={entry.url}", str(file)])
