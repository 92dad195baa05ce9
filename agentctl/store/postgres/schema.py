"""The schema of a PostgreSQL database: create, check and migrate it.

A lock ensures that only one of several servers that start at the same time creates the tables; the
other servers wait and find them. Both engines have the same tables, columns and indexes, so the
schema is compared with the schema of a SQLite database in memory.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

from agentctl import errors
from agentctl.config.databases import display_url
from agentctl.config.settings import Database as Entry
from agentctl.records.times import now
from agentctl.store.postgres.connection import (
    Connection,
    PooledConnection,
    connect,
    run_unit,
    verify_statements,
)
from agentctl.store.schema import (
    FINISH_UPGRADE,
    TABLES,
    Migration,
    StoredVersion,
    check_newer,
    check_version,
    list_indexes,
    list_pending,
    list_superseded,
    load_migrations,
)
from agentctl.store.sqlite.schema import expected_columns, expected_indexes
from agentctl.store.versions import read_version

_LOCK = "SELECT pg_advisory_xact_lock(hashtext('agentctl ' || current_schema()))"
_SCHEMA_LOCK = "SELECT pg_advisory_xact_lock(hashtext('agentctl schema'))"
_INDEX_LOCK = "hashtext('agentctl indexes ' || current_schema())"
_TRY_INDEX_LOCK = f"SELECT pg_try_advisory_lock({_INDEX_LOCK})"
_INDEX_UNLOCK = f"SELECT pg_advisory_unlock({_INDEX_LOCK})"

LOCK_PAUSE_SECONDS = 0.5
"""Seconds between two checks if another process still builds indexes."""

INDEX_PREFIX = "index "

_TABLE_NAMES = """
SELECT relname FROM pg_class
WHERE relnamespace = quote_ident(current_schema())::regnamespace AND relkind IN ('r', 'p')
"""
_IDENTITY = """
SELECT pg_postmaster_start_time(), current_database(), current_schema(),
    to_regclass('schema_version')::oid
"""
_ENCODING = "SELECT current_setting('server_encoding')"
_APPLIED = "INSERT INTO schema_version (version, applied_at) VALUES ($1, $2)"


ENCODING = "UTF8"
"""The encoding of a database that stores every text."""

CREATE_DATABASE = f"createdb --encoding {ENCODING} --template template0"


async def prepare_schema(entry: Entry, *, create: bool) -> StoredVersion:
    """Check that a database has the schema of this code; create the tables if that is allowed.

    Raises:
        Exception: other errors, for `failures.to_public_error`.
    """
    connection = await connect(entry)
    try:
        version = await read_stored_version(connection, entry)
        if version is None and create:
            await apply_pending(connection, entry, lambda _: None)
            version = await read_stored_version(connection, entry)

        if version is None:
            raise errors.Unavailable(
                "There is no database yet",
                cause=f"{display_url(entry.url)} has no tables",
                hint="create them with `agentctl serve` or `agentctl db migrate`",
            )

        check_version(version, display_url(entry.url))
        if entry.listen_url:
            await _compare_databases(connection, entry)

        await verify_statements(connection, entry)
        return version
    finally:
        await connection.close()


async def _compare_databases(connection: Connection, entry: Entry) -> None:
    """Verify that `listen_url` leads to the same tables, and not through a connection pooler."""
    direct = await connect(entry.at_listen_url())
    try:
        if direct.is_shared:
            problem = "leads to a connection pooler, which does not pass on notifications"
        elif await direct.fetchrow(_IDENTITY) != await connection.fetchrow(_IDENTITY):
            problem = "leads to another database"
        else:
            return
    finally:
        direct.terminate()

    raise errors.InvalidConfiguration(
        f"The listen_url of database {entry.id!r} {problem}",
        hint="name the PostgreSQL server itself, with the same database and user",
    )


async def apply_pending(
    connection: PooledConnection, entry: Entry, applied: Callable[[Migration], None]
) -> None:
    """Apply the pending migrations, each in a separate transaction, under the lock.

    An empty database gets all of them in one transaction, so that no server finds an old schema.
    Another database gets the indexes of its tables afterwards (`_build_indexes`).

    Raises:
        InvalidConfiguration: an empty database cannot store every text.
    """
    # IF NOT EXISTS requires the privilege on the database even if the schema exists.
    if entry.search_path and await connection.fetchval("SELECT current_schema() IS NULL"):
        async with connection.transaction():
            # Of two servers that create the schema at once, one would get an error.
            await connection.execute(_SCHEMA_LOCK)
            await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{entry.search_path}"')

    while True:
        async with connection.transaction():
            # Local: a connection pooler gives the session to other clients after the transaction.
            await connection.execute("SET LOCAL statement_timeout = 0")
            await connection.execute(_LOCK)

            stored_version = await read_stored_version(connection, entry)
            version = stored_version or StoredVersion(0, 0)
            due_migrations = list_pending("postgres", version, display_url(entry.url))
            if stored_version is None:
                await _check_encoding(connection, entry)
                for migration in due_migrations:
                    await _apply(connection, migration)
                await connection.execute(FINISH_UPGRADE)
            else:
                # One at a time: each has a transaction.
                due_migrations = due_migrations[:1]
                for migration in due_migrations:
                    await _apply(connection, migration.defer_indexes())

        if not due_migrations:
            check_newer(version, display_url(entry.url))
            if version.is_current:
                await _build_indexes(connection, applied)
            return

        for migration in due_migrations:
            applied(migration)


async def _apply(connection: PooledConnection, migration: Migration) -> None:
    if migration.statements():
        await connection.execute(migration.text)
    await connection.execute(_APPLIED, migration.number, now())


async def _check_encoding(connection: Connection, entry: Entry) -> None:
    encoding = await connection.fetchval(_ENCODING)
    if encoding != ENCODING:
        raise errors.InvalidConfiguration(
            f"The encoding of database {entry.id!r} is {encoding}",
            cause="it cannot store every text that a model may write",
            hint=f"create it with: {CREATE_DATABASE} NAME",
        )


async def _build_indexes(
    connection: PooledConnection, applied: Callable[[Migration], None]
) -> None:
    """Build missing and interrupted indexes, and remove superseded indexes; writers continue.

    One process builds at a time, other processes wait. A session that a pooler shares cannot hold
    the lock: there each index is built in a transaction, and writers wait for it.
    """
    if not await find_missing_indexes(connection):
        return

    is_alone = not connection.is_shared
    # A statement that waits has a snapshot, for whose end the other process would wait.
    while is_alone and not await connection.fetchval(_TRY_INDEX_LOCK):
        await asyncio.sleep(LOCK_PAUSE_SECONDS)

    for index in await find_missing_indexes(connection):
        name = index.name.rpartition(" ")[2]
        concurrently = "CONCURRENTLY " if is_alone else ""
        texts = [f"DROP INDEX {concurrently}IF EXISTS {name}"]
        if index.text:
            texts.append(index.text.replace("CREATE INDEX ", f"CREATE INDEX {concurrently}", 1))

        if is_alone:
            for text in texts:
                await connection.execute(text)
        else:
            async with connection.transaction():
                for text in ("SET LOCAL statement_timeout = 0", _LOCK, *texts):
                    await connection.execute(text)

        applied(index)
    if is_alone:
        await connection.execute(_INDEX_UNLOCK)


async def find_missing_indexes(connection: Connection) -> list[Migration]:
    """Return the indexes of the schema that do not exist, or are not complete.

    The indexes to remove follow them, without a text.
    """
    is_valid = {str(row[0]): bool(row[1]) for row in await connection.fetch(_INDEXES)}

    migrations = list[Migration]()
    for name, text in list_indexes("postgres").items():
        if not is_valid.get(name):
            migrations.append(Migration(0, f"{INDEX_PREFIX}{name}", text))
    for name in list_superseded():
        if name in is_valid:
            migrations.append(Migration(0, f"removal of index {name}", ""))
    return migrations


async def read_stored_version(connection: PooledConnection, entry: Entry) -> StoredVersion | None:
    """Return the schema version; None if there are no tables.

    Raises:
        Unavailable: only some of the tables exist.
    """
    names = {row[0] for row in await connection.fetch(_TABLE_NAMES)}
    if names >= TABLES:
        return await run_unit(connection, read_version())
    if names & TABLES:
        raise errors.Unavailable(
            "The database belongs to another program",
            cause=f"{display_url(entry.url)} has other tables; they were not changed",
            hint="name another database, or another schema in search_path",
        )
    return None


_COLUMNS = """
SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = current_schema()
"""
_INDEXES = """
SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace
"""
_TRIGGERS = """
SELECT t.tgname, t.tgenabled <> 'D' FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND NOT t.tgisinternal
"""

_TRIGGER = re.compile(
    r"\bDROP TRIGGER (\w+)|\bCREATE (?:OR REPLACE )?(?:CONSTRAINT )?TRIGGER (\w+)"
)


async def find_schema_differences(connection: Connection, version: int) -> list[str]:
    """Return the differences between the schema and the migrations, one line each."""
    columns = {(str(row[0]), str(row[1])) for row in await connection.fetch(_COLUMNS)}
    indexes = {str(row[0]): bool(row[1]) for row in await connection.fetch(_INDEXES)}
    triggers = {str(row[0]): bool(row[1]) for row in await connection.fetch(_TRIGGERS)}

    expected_triggers = set[str]()
    for migration in load_migrations("postgres"):
        if migration.number > version:
            continue
        for statement in migration.statements():
            # Of the two names, one is empty.
            for dropped_name, created_name in _TRIGGER.findall(statement):
                expected_triggers.discard(dropped_name)
                if created_name:
                    expected_triggers.add(created_name)

    differences = [
        f"column {table}.{name} is missing"
        for table, name in sorted(expected_columns(version) - columns)
    ]
    differences += _compare_names("index", expected_indexes(version), indexes)
    differences += _compare_names("trigger", expected_triggers, triggers)
    return differences


def _compare_names(kind: str, expected_names: set[str], present: dict[str, bool]) -> Iterator[str]:
    """Yield the differences between the expected and the present objects of a kind.

    Args:
        present: by name, True if the object is enabled.
    """
    for name in sorted(expected_names):
        if name not in present:
            yield f"{kind} {name} is missing"
        elif not present[name]:
            yield f"{kind} {name} is disabled"
