"""The schema of a SQLite file: made, checked, brought up to date.

A file that is not ours is looked at and never written to.

The schema that a SQLite file has, held against what the migrations make.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import apsw

from agentctl.records.times import now
from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.schema import (
    SCHEMA_VERSION,
    TABLES,
    Migration,
    build_newer_schema,
    list_pending,
    load_migrations,
)
from agentctl.store.sqlite.connection import run_unit
from agentctl.store.sqlite.file import (
    build_emptied,
    build_no_database,
    build_not_ours,
    has_been_used,
)
from agentctl.store.sqlite.thread import ShouldStop, run_on_thread

__all__ = [
    "apply_pending",
    "compare_schema",
    "create_if_absent",
    "expected_columns",
    "expected_indexes",
    "migrate",
    "read_schema",
    "read_stored_version",
    "require_version",
]

CREATION_SECONDS = 10.0
"""How long to wait for another process that makes the same database."""

LOCK_SECONDS = 60.0
"""How long a migration waits for those who write, or for another migration."""

_TABLE_NAMES = Sql("SELECT name FROM sqlite_master WHERE type = 'table'")
_VERSION = Sql("SELECT max(version) FROM schema_version")
_APPLIED = "INSERT INTO schema_version (version, applied_at) VALUES (?, ?)"


def create_if_absent(path: Path) -> bool:
    """Make the file, for its owner's eyes only, and the schema in it, unless it holds anything.

    Several processes may do this at once: one of them fills the file, the others wait for it.

    Returns:
        Whether this process has made it.

    Raises:
        Unavailable: it is empty, and was used before.
        OSError, apsw.Error: it cannot be made.
    """
    # Looked at first: who makes the file at the same time begins to use it later.
    used = path.exists() and has_been_used(path)
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    deadline = time.monotonic() + CREATION_SECONDS
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(int(CREATION_SECONDS * 1000))
        while (made := _create_tables(connection, path, used)) is None:
            if time.monotonic() > deadline:
                raise apsw.BusyError("another process holds the new file")
            time.sleep(0.01)
        return made
    finally:
        connection.close(True)


def _create_tables(connection: apsw.Connection, path: Path, used: bool) -> bool | None:
    """Set the journal mode and apply every migration to a file without tables.

    Returns:
        Whether it had none; None when another process is at it, and this is to be tried again.

    """
    try:
        # The change of the journal mode needs a lock that SQLite does not wait for.
        if connection.execute(_TABLE_NAMES).fetchall():
            return False
        if used:
            raise build_emptied(path)
        connection.pragma("journal_mode", "WAL")
        connection.execute("BEGIN IMMEDIATE")
    except (apsw.BusyError, apsw.LockedError):
        return None
    empty = not connection.execute(_TABLE_NAMES).fetchall()
    for migration in load_migrations("sqlite") if empty else ():
        _apply(connection, migration)
    connection.execute("COMMIT")
    if empty:
        # Into the file itself, so that a schema is there whatever becomes of the log.
        with contextlib.suppress(apsw.BusyError):
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    return empty


async def migrate(path: Path, applied: Callable[[Migration], None]) -> None:
    """Bring a file that exists up to date; see `apply_pending`. Raises Unavailable for apsw's."""
    await run_on_thread(
        path, lambda each, stop: apply_pending(each, path, applied, stop), writes=True
    )


def apply_pending(
    connection: apsw.Connection, path: Path, applied: Callable[[Migration], None], stop: ShouldStop
) -> None:
    """Apply what is missing, each migration in a transaction of its own, under the write lock.

    Of several processes one applies a migration; the others wait and find it done. Killed at any
    point it leaves the schema of before or of after a migration.

    Args:
        connection: one that may write.
        path: its file, for messages.
        applied: is told of each when it is durable.
        stop: ends the wait for the lock.

    Raises:
        SchemaMismatch: it is newer than this code.
        Unavailable: it is not ours.
        apsw.Error: a migration failed, and has left nothing; or others hold the lock for long.
    """
    while run_unit(connection, require_version(path)) != SCHEMA_VERSION:
        _begin_immediate(connection, stop)
        try:
            found = run_unit(connection, require_version(path))
            if found > SCHEMA_VERSION:
                raise build_newer_schema(found, str(path))
            todo = list_pending("sqlite", found)[:1]
            for migration in todo:
                _apply(connection, migration)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        for migration in todo:
            applied(migration)


def _begin_immediate(connection: apsw.Connection, stop: ShouldStop) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    connection.set_busy_timeout(100)
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except apsw.BusyError:
            if stop() or time.monotonic() > deadline:
                raise


def _apply(connection: apsw.Connection, migration: Migration) -> None:
    connection.execute(migration.text).fetchall()
    connection.execute(_APPLIED, (migration.number, now()))


@unit
def require_version(path: Path) -> Steps[int]:
    """Like `stored_version`, where there has to be something. Raises Unavailable."""
    found = yield from read_stored_version(path)
    if found is None:
        raise build_no_database(path)
    return found


@unit
def read_stored_version(path: Path) -> Steps[int | None]:
    """The number of the last migration that was applied, 0 for none; None: there are no tables.

    Raises:
        Unavailable: the database is another program's.
    """
    names = {name for (name,) in (yield Statement(_TABLE_NAMES))}
    if not names:
        return None
    if not names >= TABLES:
        raise build_not_ours(path)
    ((found,),) = yield Statement(_VERSION)
    return found or 0


SchemaObjects = Mapping[tuple[str, str], str]
"""The SQL of each table, index, view and trigger, by kind and name."""

_ALL = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite%'"

_COLUMNS = """
SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c
WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%'
"""

_INDEXES = "SELECT name FROM sqlite_master WHERE type = 'index' AND name NOT LIKE 'sqlite%'"


def read_schema(connection: apsw.Connection) -> SchemaObjects:
    """The schema of a database."""
    rows = connection.execute(_ALL).fetchall()
    return {(str(kind), str(name)): " ".join(str(sql).split()) for kind, name, sql in rows}


def compare_schema(found: SchemaObjects, version: int) -> Iterator[tuple[str, bool]]:
    """What differs from the migrations up to a version, each as one line.

    Returns:
        Lines, and whether it is only something that is there besides: `index mine`.
    """
    wanted = read_schema(_build_in_memory(version))
    for kind, name in sorted(wanted.keys() - found.keys()):
        yield f"{kind} {name} is missing", False
    for key in sorted(wanted.keys() & found.keys()):
        if wanted[key] != found[key]:
            yield f"{key[0]} {key[1]} is not as the migrations make it", False
    for kind, name in sorted(found.keys() - wanted.keys()):
        yield f"{kind} {name} is not one of ours", True


def expected_columns(version: int) -> set[tuple[str, str]]:
    """Tables and columns that the migrations make, on either engine: they make the same."""
    return {
        (str(table), str(name))
        for table, name in _build_in_memory(version).execute(_COLUMNS).fetchall()
    }


def expected_indexes(version: int) -> set[str]:
    """The names of indexes that the migrations make, on either engine."""
    return {str(name) for (name,) in _build_in_memory(version).execute(_INDEXES).fetchall()}


@cache
def _build_in_memory(version: int) -> apsw.Connection:
    """A database in memory, made by the migrations."""
    connection = apsw.Connection(":memory:")
    for migration in load_migrations("sqlite"):
        if migration.number <= version:
            connection.execute(migration.text).fetchall()
    return connection
