"""Migrations of a configured database, and reads that work before a migration: version and size."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.config.settings import Database as Entry
from agentctl.store.database import Sql, Steps, Work, unit
from agentctl.store.schema import Engine, Migration, StoredVersion, load_migrations
from agentctl.store.threads import call_in_thread

T = TypeVar("T")

LONGEST_SECONDS = 86_400.0
"""Maximum duration of a statement of a migration: an index of a large table takes long."""

EXACT_COUNT_LIMIT = 100_000
"""Maximum number of rows of a table that are counted; a larger number is estimated."""

_TABLES = ("sessions", "runs")

# In the order of the table: each row of another index is looked up in the map of visible pages.
_COUNTED = f"SELECT 1 FROM {{}} ORDER BY created_at LIMIT {EXACT_COUNT_LIMIT + 1}"
_COUNT = f"SELECT count(*) FROM ({_COUNTED}) AS counted"

_ROWID = "SELECT max(rowid) FROM {}"

_TUPLES = """
SELECT reltuples::bigint FROM pg_class
WHERE relnamespace = quote_ident(current_schema())::regnamespace AND relname = '{}'
"""

_BYTES = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
WHERE relnamespace = quote_ident(current_schema())::regnamespace AND relkind = 'r'
"""


def get_engine(entry: Entry) -> Engine:
    """Return the engine of a configured database."""
    return "sqlite" if is_sqlite_url(entry.url) else "postgres"


async def read_version(entry: Entry) -> StoredVersion | None:
    """Return the schema version of a database; None if the database does not exist yet.

    Raises:
        Unavailable: the database cannot be read, or belongs to another program.
    """
    if not is_sqlite_url(entry.url):
        from agentctl.store.postgres.connection import open_connection
        from agentctl.store.postgres.schema import read_stored_version

        async with open_connection(entry) as connection:
            return await read_stored_version(connection, entry)

    from agentctl.store.sqlite.connection import build_emptied, check_file, has_been_used, run_unit
    from agentctl.store.sqlite.schema import read_stored_version as read_version_of_file
    from agentctl.store.sqlite.thread import run_on_thread

    path = sqlite_path(entry.url)
    check_file(path, create=True)
    if not path.exists():
        return None

    work = read_version_of_file(path)
    version = await run_on_thread(path, lambda connection, _: run_unit(connection, work))
    if version is None and has_been_used(path):
        raise build_emptied(path)
    return version


async def list_missing_indexes(entry: Entry, version: StoredVersion) -> Sequence[Migration]:
    """Return the indexes that `migrate` would build in the second step. Raises Unavailable.

    The file of SQLite gets its indexes with the migrations.
    """
    if is_sqlite_url(entry.url) or not version.is_current:
        return []

    from agentctl.store.postgres.connection import open_connection
    from agentctl.store.postgres.schema import find_missing_indexes

    async with open_connection(entry) as connection:
        return await find_missing_indexes(connection)


class Reader(Protocol):
    """Runs units that only read."""

    async def __call__(self, work: Work[T]) -> T: ...


@asynccontextmanager
async def open_reader(entry: Entry) -> AsyncIterator[Reader]:
    """Open a database for reads without a time limit, each on one snapshot. Raises Unavailable."""
    if is_sqlite_url(entry.url):
        from agentctl.store.sqlite.connection import run_unit_on_snapshot
        from agentctl.store.sqlite.thread import run_on_thread

        path = sqlite_path(entry.url)

        async def read(work: Work[T]) -> T:
            return await run_on_thread(
                path, lambda connection, _: run_unit_on_snapshot(connection, work)
            )

        yield read
        return

    from agentctl.store.postgres.database import PostgresDatabase

    database = PostgresDatabase(replace(entry, statement_seconds=LONGEST_SECONDS), create=False)
    try:
        yield database.read
    finally:
        await database.close()


class Sizes(NamedTuple):
    """The size of a database in bytes and rows."""

    bytes: int

    log: int | None
    """Bytes of the write-ahead log of a SQLite file; None for PostgreSQL."""

    sessions: int
    runs: int

    estimated: bool
    """True if a number of rows is estimated."""


async def read_sizes(entry: Entry) -> Sizes:
    """Read the size of a database that has the tables of agentctl. Raises Unavailable."""
    if not is_sqlite_url(entry.url):
        from agentctl.store.postgres.connection import open_connection
        from agentctl.store.postgres.connection import run_unit as run_on_postgres

        async with open_connection(entry) as connection:
            sessions, runs = await run_on_postgres(connection, _count_rows(_TUPLES))
            size: int = await connection.fetchval(_BYTES)
        return Sizes(size, None, sessions, runs, max(sessions, runs) > EXACT_COUNT_LIMIT)

    from agentctl.store.sqlite.connection import get_file_size, get_wal_path, run_unit
    from agentctl.store.sqlite.thread import run_on_thread

    path = sqlite_path(entry.url)
    work = _count_rows(_ROWID)
    sessions, runs = await run_on_thread(path, lambda connection, _: run_unit(connection, work))
    return Sizes(
        get_file_size(path),
        get_file_size(get_wal_path(path)),
        sessions,
        runs,
        max(sessions, runs) > EXACT_COUNT_LIMIT,
    )


@unit
def _count_rows(estimate: str) -> Steps[list[int]]:
    """Count the rows of the tables; `estimate` is the statement for a large one."""
    counts = []
    for table in _TABLES:
        count: int = yield from Sql(_COUNT.format(table)).value()
        if count > EXACT_COUNT_LIMIT:
            estimated_count = yield from Sql(estimate.format(table)).value()
            count = max(estimated_count, count)
        counts.append(count)
    return counts


async def migrate(entry: Entry, applied: Callable[[Migration], None]) -> None:
    """Apply the pending migrations; create a missing database.

    Of PostgreSQL it builds indexes last, while servers work. After an interruption the next call
    builds the rest. A newer schema that this code works with is not changed.

    Args:
        applied: called with each migration, and each index that was built separately, after it is
            durable, on any thread.

    Raises:
        SchemaMismatch: the schema is newer than this code, and not compatible with it.
        Unavailable: the database cannot be used, or belongs to another program.
    """
    if not is_sqlite_url(entry.url):
        from agentctl.store.postgres.connection import open_connection
        from agentctl.store.postgres.schema import apply_pending

        async with open_connection(replace(entry, statement_seconds=LONGEST_SECONDS)) as connection:
            await apply_pending(connection, entry, applied)
        return

    from agentctl.store.sqlite.connection import check_file
    from agentctl.store.sqlite.schema import create_file
    from agentctl.store.sqlite.schema import migrate as migrate_file

    path = sqlite_path(entry.url)
    check_file(path, create=True)
    if await call_in_thread(create_file, entry.id, path):
        for migration in load_migrations("sqlite"):
            applied(migration)
        return
    await migrate_file(path, applied)
