"""A PostgreSQL database as the target of a copy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal, TypeVar

import asyncpg

from agentctl.config.databases import display_url
from agentctl.config.settings import Database as Entry
from agentctl.store.copying.tables import (
    BATCH_BYTES,
    BATCH_ROWS,
    Batches,
    Key,
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

_TYPES = {"TEXT": "text", "INTEGER": "bigint", "BLOB": "bytea", "REAL": "double precision"}

_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_TRANSACTION = "BEGIN ISOLATION LEVEL READ COMMITTED"

_SEQUENCES = """
SELECT c.relname, a.attname, pg_get_serial_sequence(quote_ident(c.relname), a.attname)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND a.attidentity <> ''
"""
# BEFORE (2) a deletion (8) or a change (16), and not an insertion (4): pg_trigger.h.
_GUARDS = """
SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND NOT t.tgisinternal
    AND t.tgtype & 2 > 0 AND t.tgtype & 24 > 0 AND t.tgtype & 4 = 0
"""


def name_place(entry: Entry) -> str:
    """Return the `place` of a database for messages and for the records of a copy."""
    place = display_url(entry.url)
    return f"{place} (schema {entry.search_path})" if entry.search_path else place


class PostgresTarget:
    """A database that receives the rows of another one, used by one task. Use `open_target`.

    Methods raise the errors of the driver.

    Attributes:
        place: the URL without a password, for messages.
    """

    def __init__(self, entry: Entry, connection: PooledConnection) -> None:
        self.place = name_place(entry)
        self._connection = connection

    async def read(self, work: Work[T]) -> T:
        """Run a unit that reads."""
        return await run_unit(self._connection, work)

    async def write(self, work: Work[T]) -> T:
        """Run a unit in a transaction, or in the open one of `transaction`."""
        if self._connection.is_in_transaction():
            return await run_unit(self._connection, work)
        async with self.transaction():
            return await run_unit(self._connection, work)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        """Let all reads of the block see one state."""
        async with self._in_transaction(_SNAPSHOT):
            yield

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Make the writes of the block one transaction, undone if it raises."""
        async with self._in_transaction(_TRANSACTION):
            yield

    async def scan(self, table: Table) -> Batches:
        """Return all rows of a table in any order, in bounded batches. Call it in `snapshot`."""
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

    async def read_rows(self, table: Table, keys: Sequence[Key]) -> list[Row]:
        """Return the rows with these keys, in any order."""
        arrays = ", ".join(
            f"${number}::{_TYPES[table.types[position]]}[]"
            for number, position in enumerate(table.key, 1)
        )
        names = ", ".join(table.key_columns)
        found = await self._connection.fetch(
            f"SELECT {', '.join(f't.{name}' for name in table.columns)} FROM {table.name} t"
            f" JOIN unnest({arrays}) AS k ({names}) USING ({names})",
            *(list(values) for values in zip(*keys, strict=True)),
        )
        return [tuple(record) for record in found]

    async def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert rows that do not exist."""
        if rows:
            await self._connection.copy_records_to_table(
                table.name, records=rows, columns=table.columns
            )

    async def upsert(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert rows, or replace the values of those that exist."""
        others = [name for name in table.columns if name not in table.key_columns]
        values = ", ".join(f"{name} = excluded.{name}" for name in others)
        marks = ", ".join(f"${number}" for number in range(1, len(table.columns) + 1))
        await self._connection.executemany(
            f"INSERT INTO {table.name} ({', '.join(table.columns)}) OVERRIDING SYSTEM VALUE"
            f" VALUES ({marks}) ON CONFLICT ({', '.join(table.key_columns)}) DO"
            + (f" UPDATE SET {values}" if others else " NOTHING"),
            rows,
        )

    async def delete(self, table: Table, keys: Sequence[Key]) -> None:
        """Delete the rows with these keys."""
        where = " AND ".join(
            f"{name} = ${number}" for number, name in enumerate(table.key_columns, 1)
        )
        await self._connection.executemany(f"DELETE FROM {table.name} WHERE {where}", keys)

    async def set_counters(self, counters: dict[str, int]) -> None:
        """Set these values, so that no table uses a number twice."""
        for table, column, sequence in await self._connection.fetch(_SEQUENCES):
            newest = await self._connection.fetchval(f"SELECT max({column}) FROM {table}")
            value = max(newest or 0, counters.get(table, 0))
            if value:
                await self._connection.execute(
                    "SELECT setval($1::text::regclass, $2)", sequence, value
                )

    async def alter_guards(self, how: Literal["DISABLE", "ENABLE"]) -> None:
        """Suspend the triggers that refuse changes, which the source has allowed; or end that."""
        for table, trigger in await self._connection.fetch(_GUARDS):
            await self._connection.execute(f"ALTER TABLE {table} {how} TRIGGER {trigger}")

    @asynccontextmanager
    async def _in_transaction(self, begin: str) -> AsyncIterator[None]:
        await self._connection.begin(begin)
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


@asynccontextmanager
async def open_target(entry: Entry) -> AsyncIterator[PostgresTarget]:
    """Open the target of a copy; the errors are those of `sqlite.open_source`."""
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
