"""The size of a database, from reads that do not scan a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agentctl.config.databases import is_sqlite_url, sqlite_path

if TYPE_CHECKING:
    import apsw

    from agentctl.config.settings import Database as Entry
    from agentctl.store.sqlite.thread import ShouldStop

EXACT_COUNT_LIMIT = 100_000
"""Maximum number of rows of a table that are counted; a larger number is estimated."""

_TABLES = ("sessions", "runs")

_COUNT = f"SELECT count(*) FROM (SELECT 1 FROM {{}} LIMIT {EXACT_COUNT_LIMIT + 1}) AS counted"

_ROWID = "SELECT max(rowid) FROM {}"

_TUPLES = """
SELECT reltuples::bigint FROM pg_class
WHERE relnamespace = quote_ident(current_schema())::regnamespace AND relname = '{}'
"""

_BYTES = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
WHERE relnamespace = quote_ident(current_schema())::regnamespace AND relkind = 'r'
"""


class Sizes(NamedTuple):
    """The size of a database in bytes and rows.

    Attributes:
        log: bytes of the write-ahead log of a SQLite file; None for PostgreSQL.
        estimated: True if a number of rows is estimated.
    """

    bytes: int
    log: int | None
    sessions: int
    runs: int
    estimated: bool


async def read_sizes(entry: Entry) -> Sizes:
    """Read the size of a database that has the tables of agentctl. Raises Unavailable."""
    if not is_sqlite_url(entry.url):
        return await _read_postgres_sizes(entry)
    from agentctl.store.sqlite.file import get_file_size, get_wal_path
    from agentctl.store.sqlite.thread import run_on_thread

    path = sqlite_path(entry.url)
    sessions, runs = await run_on_thread(path, _count_rows)
    return Sizes(
        get_file_size(path),
        get_file_size(get_wal_path(path)),
        sessions,
        runs,
        max(sessions, runs) > EXACT_COUNT_LIMIT,
    )


def _count_rows(connection: apsw.Connection, _: ShouldStop) -> list[int]:
    def number(sql: str) -> int:
        return int(str(connection.execute(sql).fetchall()[0][0]))

    counts = [number(_COUNT.format(table)) for table in _TABLES]
    return [
        rows if rows <= EXACT_COUNT_LIMIT else max(number(_ROWID.format(table)), rows)
        for table, rows in zip(_TABLES, counts, strict=True)
    ]


async def _read_postgres_sizes(entry: Entry) -> Sizes:
    from agentctl.store.postgres.connection import open_connection

    counts = []
    async with open_connection(entry) as connection:
        for table in _TABLES:
            count: int = await connection.fetchval(_COUNT.format(table))
            if count > EXACT_COUNT_LIMIT:
                count = max(await connection.fetchval(_TUPLES.format(table)), count)
            counts.append(count)
        size: int = await connection.fetchval(_BYTES)
    return Sizes(size, None, counts[0], counts[1], max(counts) > EXACT_COUNT_LIMIT)
