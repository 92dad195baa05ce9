"""A PostgreSQL database as the target of a copy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import asyncpg

from agentctl.config.databases import display_url
from agentctl.config.settings import Database as Entry
from agentctl.store.copying.tables import (
    BATCH_BYTES,
    BATCH_ROWS,
    Batches,
    Row,
    Table,
    check_schema,
    count_bytes,
)
from agentctl.store.database import Work
from agentctl.store.migrating import LONGEST_SECONDS
from agentctl.store.postgres.connection import PooledConnection, connect, run_unit
from agentctl.store.postgres.failures import to_public_error

T = TypeVar("T")

PREFETCH = 200
"""Rows that a cursor reads at a time: a row of a run may have megabytes."""

_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)

_TRANSACTION = "BEGIN ISOLATION LEVEL READ COMMITTED"

# Autovacuum gives a table up after a second of this wait (deadlock_timeout).
_LOCK_SECONDS = "SET LOCAL lock_timeout = '5s'"

_SEQUENCES = """
SELECT c.relname, a.attname, pg_get_serial_sequence(quote_ident(c.relname), a.attname)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND a.attidentity <> ''
"""


class PostgresTarget:
    """A database that receives the rows of another database. Use `open_target`, in one task.

    Methods raise the errors of the driver.
    """

    def __init__(self, entry: Entry, connection: PooledConnection) -> None:
        self.place = display_url(entry.url)
        """The URL without a password, and the schema, for messages."""

        if entry.search_path:
            self.place += f" (schema {entry.search_path})"
        self._connection = connection

    async def run(self, work: Work[T]) -> T:
        """Run a unit in the open transaction; without one, each of its statements is one."""
        return await run_unit(self._connection, work)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Make the writes of the block one transaction, undone if it raises."""
        await self._connection.begin(_TRANSACTION)
        try:
            yield
            await self._connection.execute("COMMIT")
        except BaseException:
            try:
                await self._connection.execute("ROLLBACK")
            except _DRIVER_ERRORS:
                # It is lost, or in use by a cancelled statement.
                self._connection.terminate()
            raise

    async def lock(self, tables: Sequence[Table]) -> None:
        """Let no one else write, and no server begin to work, until the end of the transaction."""
        names = ", ".join([*(table.name for table in tables), "workers"])
        await self._connection.execute(_LOCK_SECONDS)
        await self._connection.execute(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE")

    async def scan(self, table: Table) -> Batches:
        """Return all rows of a table in any order, in bounded batches.

        Call it in `transaction`, which has open cursors until its end.
        """
        sql = f"SELECT {', '.join(table.columns)} FROM {table.name}"
        batch = list[Row]()
        size = 0
        async for record in self._connection.cursor(sql, prefetch=PREFETCH):
            row = tuple(record)
            batch.append(row)
            size += count_bytes(row)
            if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
                yield batch
                batch = []
                size = 0
        yield batch

    async def read_first(self, table: Table, limit: int) -> list[Row]:
        """Return at most `limit` rows of a table, in any order."""
        sql = f"SELECT {', '.join(table.columns)} FROM {table.name} LIMIT {limit}"
        return [tuple(record) for record in await self._connection.fetch(sql)]

    async def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert rows that do not exist."""
        if rows:
            await self._connection.copy_records_to_table(
                table.name, records=rows, columns=table.columns
            )

    async def set_counters(self, counters: dict[str, int]) -> None:
        """Set these values, so that no table uses a number twice."""
        for table, column, sequence in await self._connection.fetch(_SEQUENCES):
            newest = await self._connection.fetchval(f"SELECT max({column}) FROM {table}")
            value = max(newest or 0, counters.get(table, 0))
            if value:
                await self._connection.execute(
                    "SELECT setval($1::text::regclass, $2)", sequence, value
                )


@asynccontextmanager
async def open_target(entry: Entry) -> AsyncIterator[PostgresTarget]:
    """Open the target of a copy, and turn the errors of its driver into public errors.

    Raises:
        Unavailable: it does not exist or cannot be used.
        SchemaMismatch: it does not have the schema of this code.
    """
    await check_schema(entry)
    try:
        connection = await connect(replace(entry, statement_seconds=LONGEST_SECONDS))
    except Exception as error:
        raise to_public_error(error, entry.id) from None
    try:
        yield PostgresTarget(entry, connection)
    except _DRIVER_ERRORS as error:
        raise to_public_error(error, entry.id) from None
    finally:
        connection.terminate()
