"""The schema of a PostgreSQL database: made, checked, brought up to date.

All of it is done under one lock, so that of several servers that start at once one makes the
tables, and the others wait and find them.

The schema that a PostgreSQL database has, held against what the migrations make.

Both engines have the same tables, columns and indexes, so that those of a SQLite file in memory
are what to look for: nothing has to be made on the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from agentctl import errors
from agentctl.config.databases import display_url
from agentctl.config.settings import Database as Entry
from agentctl.records.times import now
from agentctl.store.postgres.connection import Connection, connect
from agentctl.store.schema import (
    SCHEMA_VERSION,
    TABLES,
    Migration,
    build_newer_schema,
    check_version,
    list_pending,
    load_migrations,
)
from agentctl.store.sqlite.schema import expected_columns, expected_indexes

__all__ = [
    "apply_pending",
    "find_schema_differences",
    "has_tables",
    "prepare_schema",
    "read_version",
]

_LOCK = "SELECT pg_advisory_xact_lock(hashtext('agentctl ' || current_schema()))"
_TABLE_NAMES = """
SELECT relname FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p')
"""
_VERSION = "SELECT max(version) FROM schema_version"
_APPLIED = "INSERT INTO schema_version (version, applied_at) VALUES ($1, $2)"


async def prepare_schema(entry: Entry, *, create: bool) -> None:
    """See that a database has the schema that this code needs.

    Args:
        entry: which database.
        create: make the tables where there are none.

    Raises:
        Unavailable: there are none, or others.
        SchemaMismatch: it is older or newer than this code.
        What `postgres_connection.public_error` takes.
    """
    connection = await connect(entry)
    try:
        if create and not await has_tables(connection, entry):
            await apply_pending(connection, entry, _ignore)
        await _require_tables(connection, entry)
        check_version(await read_version(connection), display_url(entry.url))
    finally:
        await connection.close()


async def apply_pending(
    connection: Connection, entry: Entry, applied: Callable[[Migration], None]
) -> None:
    """Apply what is missing, each migration in a transaction of its own, under the lock.

    Where there is nothing all of them are one transaction: nobody finds a schema that is old.

    Args:
        connection: to that database, in no transaction.
        entry: which database.
        applied: is told of each when it is durable.

    Raises:
        Unavailable: it has the tables of something else.
        SchemaMismatch: it is newer than this code.
    """
    where = display_url(entry.url)
    if entry.search_path:
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{entry.search_path}"')
    await connection.execute("SET statement_timeout = 0")
    while True:
        async with connection.transaction():
            await connection.execute(_LOCK)
            found = await read_version(connection) if await has_tables(connection, entry) else 0
            todo = list_pending("postgres", found)[: 1 if found else None]
            for migration in todo:
                await connection.execute(migration.text)
                await connection.execute(_APPLIED, migration.number, now())
        if not todo:
            if found > SCHEMA_VERSION:
                raise build_newer_schema(found, where)
            return
        for migration in todo:
            applied(migration)


async def read_version(connection: Connection) -> int:
    """The number of the last migration that was applied; 0 for none."""
    found: int | None = await connection.fetchval(_VERSION)
    return found or 0


async def _require_tables(connection: Connection, entry: Entry) -> None:
    if not await has_tables(connection, entry):
        raise errors.Unavailable(
            "There is no database yet",
            cause=f"{display_url(entry.url)} has no tables",
            hint="`agentctl serve` makes them, and so does `agentctl db migrate`",
        )


async def has_tables(connection: Connection, entry: Entry) -> bool:
    """Whether our tables are there.

    Raises:
        Unavailable: only some of them are, or others.
    """
    names = {row[0] for row in await connection.fetch(_TABLE_NAMES)}
    if names >= TABLES:
        return True
    if names & TABLES:
        raise errors.Unavailable(
            "The database is not one of agentctl",
            cause=f"{display_url(entry.url)} has other tables; they were left as they are",
            hint="name another database, or another schema in search_path",
        )
    return False


def _ignore(_: Migration) -> None:
    """Who makes a database that is not there is told nothing."""


_COLUMNS = """
SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = current_schema()
"""
_INDEXES = """
SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = current_schema()::regnamespace
"""
_TRIGGERS = """
SELECT t.tgname, t.tgenabled <> 'D' FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = current_schema()::regnamespace AND NOT t.tgisinternal
"""

_TRIGGER = re.compile(r"CREATE (?:OR REPLACE )?(?:CONSTRAINT )?TRIGGER (\w+)")


async def find_schema_differences(connection: Connection, version: int) -> list[str]:
    """What is missing or out of order, each as one line."""
    there = {(str(row[0]), str(row[1])) for row in await connection.fetch(_COLUMNS)}
    named = {str(row[0]): bool(row[1]) for row in await connection.fetch(_INDEXES)}
    triggers = {str(row[0]): bool(row[1]) for row in await connection.fetch(_TRIGGERS)}
    return [
        *(
            f"column {table}.{name} is missing"
            for table, name in sorted(expected_columns(version) - there)
        ),
        *_compare_names("index", expected_indexes(version), named),
        *_compare_names("trigger", set(_trigger_names(version)), triggers),
    ]


def _compare_names(kind: str, wanted: set[str], there: dict[str, bool]) -> Iterator[str]:
    for name in sorted(wanted):
        if name not in there:
            yield f"{kind} {name} is missing"
        elif not there[name]:
            yield f"{kind} {name} is not in force"


def _trigger_names(version: int) -> Iterator[str]:
    for migration in load_migrations("postgres"):
        if migration.number <= version:
            for statement in migration.statements():
                yield from _TRIGGER.findall(statement)
