"""The schema of a SQLite file: create, check and migrate it, and compare it with the migrations.

A file of another program is read but never written to.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import apsw

from agentctl import errors
from agentctl.records.times import now
from agentctl.store import schema
from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.sqlite.connection import (
    add_path,
    build_emptied,
    build_no_database,
    has_been_used,
    run_unit,
    to_public_error,
)
from agentctl.store.sqlite.thread import ShouldStop, run_on_thread
from agentctl.store.versions import read_version

CREATION_SECONDS = 10.0
"""Maximum wait for another process that creates the same database."""

LOCK_SECONDS = 60.0
"""Maximum wait of a migration for writers, or for another migration."""

_TABLE_NAMES = Sql("SELECT name FROM sqlite_master WHERE type = 'table'")
_APPLIED = "INSERT INTO schema_version (version, applied_at) VALUES (?, ?)"


def create_file(id: str, path: Path) -> bool:
    """Create the file, readable for its owner only, and its schema, unless it has tables.

    Several processes may call this at the same time: one process creates the schema, the other
    processes wait for it.

    Returns:
        True if this process has created the schema.

    Raises:
        Unavailable: the file cannot be created, or is empty, but was used before.
    """
    try:
        return _create(path)
    except apsw.Error as error:
        raise add_path(to_public_error(error, id), path) from None
    except OSError as error:
        raise errors.Unavailable(
            "The database cannot be created",
            cause=f"{path}: {os.strerror(error.errno or 0).lower()}",
            hint="check the permissions of the folder",
        ) from None


def _create(path: Path) -> bool:
    # Read before the file is created: a process that creates it now uses it only later.
    was_used = path.exists() and has_been_used(path)
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))

    deadline = time.monotonic() + CREATION_SECONDS
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(int(CREATION_SECONDS * 1000))
        while True:
            created = _create_tables(connection, path, was_used)
            if created is not None:
                return created
            if time.monotonic() > deadline:
                raise apsw.BusyError("another process holds the new file")
            time.sleep(0.01)
    finally:
        connection.close(True)


def _create_tables(connection: apsw.Connection, path: Path, was_used: bool) -> bool | None:
    """Set the journal mode and apply every migration to a file without tables.

    Returns:
        True if the file had no tables. None if another process holds it: try again.
    """
    try:
        # To change the journal mode SQLite needs a lock, for which it does not wait.
        if connection.execute(_TABLE_NAMES).fetchall():
            return False
        if was_used:
            raise build_emptied(path)
        connection.pragma("journal_mode", "WAL")
        connection.execute("BEGIN IMMEDIATE")
    except (apsw.BusyError, apsw.LockedError):
        return None

    # Another process may have created the tables before this one had the lock.
    is_empty = not connection.execute(_TABLE_NAMES).fetchall()
    if is_empty:
        for migration in schema.load_migrations("sqlite"):
            _apply(connection, migration)
        connection.execute(schema.FINISH_UPGRADE)
    connection.execute("COMMIT")

    if is_empty:
        # Write the schema to the file itself, so that it survives the loss of the log.
        with contextlib.suppress(apsw.BusyError):
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    return is_empty


async def migrate(path: Path, applied: Callable[[schema.Migration], None]) -> None:
    """Apply the pending migrations, each in a separate transaction, under the write lock.

    Of several processes one applies a migration; the other processes wait and find it applied. A
    process that is killed leaves the schema before or after a migration.
    """

    def apply_pending(connection: apsw.Connection, stop: ShouldStop) -> None:
        version = run_unit(connection, require_version(path))
        while version.number < schema.SCHEMA_VERSION:
            _begin_immediate(connection, stop)
            try:
                # Another process may have applied a migration before this one had the lock.
                version = run_unit(connection, require_version(path))
                due = schema.list_pending("sqlite", version, str(path))[:1]
                for migration in due:
                    _apply(connection, migration)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

            for migration in due:
                applied(migration)
            version = run_unit(connection, require_version(path))

        schema.check_newer(version, str(path))

    await run_on_thread(path, apply_pending, writes=True)


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


def _apply(connection: apsw.Connection, migration: schema.Migration) -> None:
    connection.execute(migration.text).fetchall()
    connection.execute(_APPLIED, (migration.number, now()))


@unit
def require_version(path: Path) -> Steps[schema.StoredVersion]:
    """Return the schema version of a database that must exist. Raises Unavailable."""
    version = yield from read_stored_version(path)
    if version is None:
        raise build_no_database(path)
    return version


@unit
def read_stored_version(path: Path) -> Steps[schema.StoredVersion | None]:
    """Return the schema version; None if there are no tables.

    Raises:
        Unavailable: the database belongs to another program.
    """
    names = {name for (name,) in (yield Statement(_TABLE_NAMES))}
    if not names:
        return None
    if not names >= schema.TABLES:
        raise errors.Unavailable(
            "The file is not an agentctl database",
            cause=f"{path} contains something else; it was not changed",
            hint="name another file in [[databases]] url",
        )
    return (yield from read_version())


SchemaObjects = Mapping[tuple[str, str], str]
"""The SQL of each table, index, view and trigger, by kind and name."""

_ALL = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite%'"

_COLUMNS = """
SELECT m.name, c.name FROM pragma_table_list m, pragma_table_info(m.name) c
WHERE m.schema = 'main' AND m.type = 'table' AND m.name NOT LIKE 'sqlite%'
"""


def read_schema(connection: apsw.Connection) -> SchemaObjects:
    """Return the schema of a database."""
    rows = connection.execute(_ALL).fetchall()
    return {(str(kind), str(name)): " ".join(str(sql).split()) for kind, name, sql in rows}


def compare_schema(present: SchemaObjects, version: int) -> Iterator[tuple[str, bool]]:
    """Compare a schema with the migrations up to a version.

    Returns:
        Lines, each with True if it reports only an additional table or index, such as `index mine`.
        A trigger or a view changes what statements do.
    """
    expected = read_schema(build_in_memory(version))
    for kind, name in sorted(expected.keys() - present.keys()):
        yield f"{kind} {name} is missing", False
    for key in sorted(expected.keys() & present.keys()):
        if expected[key] != present[key]:
            yield f"{key[0]} {key[1]} differs from the migrations", False
    for kind, name in sorted(present.keys() - expected.keys()):
        yield f"{kind} {name} is not part of the schema", kind not in ("trigger", "view")


def expected_columns(version: int) -> set[tuple[str, str]]:
    """Return the tables and columns of the migrations, which are the same on both engines."""
    return {
        (str(table), str(name))
        for table, name in build_in_memory(version).execute(_COLUMNS).fetchall()
    }


def expected_indexes(version: int) -> set[str]:
    """Return the names of the indexes of the migrations, which are the same on both engines."""
    return {name for kind, name in read_schema(build_in_memory(version)) if kind == "index"}


@cache
def build_in_memory(version: int) -> apsw.Connection:
    """Return a database in memory with the migrations up to a version."""
    connection = apsw.Connection(":memory:")
    for migration in schema.load_migrations("sqlite"):
        if migration.number <= version:
            connection.execute(migration.text).fetchall()
    return connection
