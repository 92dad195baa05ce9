"""A SQLite file as the source of a copy: in one transaction, while no other process uses it.

Statements run on the event loop: the process has nothing else to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar, cast

import apsw

from agentctl.config.databases import sqlite_path
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
from agentctl.store.sqlite import connection

T = TypeVar("T")

_COUNTERS = "SELECT name, seq FROM sqlite_sequence"


class SqliteSource:
    """A file that is copied, used by one task. Use `open_source`.

    All reads see one state. Methods raise the errors of the driver.

    Args:
        connection: in a transaction, and without others (`connect_alone`).
    """

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        self.place = str(path)
        """The file, for messages."""

        self._connection = connection

    async def run(self, work: Work[T]) -> T:
        """Run a unit. Its writes are undone at the end, unless `commit` follows."""
        return connection.run_unit(self._connection, work)

    async def commit(self) -> None:
        """Make the writes durable, and let other processes use the file."""
        self._connection.execute("COMMIT")

    async def scan(self, table: Table) -> Batches:
        """Return all rows of a table in any order, in bounded batches."""
        rows = self._connection.execute(f"SELECT {', '.join(table.columns)} FROM {table.name}")
        batch = list[Row]()
        size = 0
        for row in cast("Iterator[Row]", rows):
            batch.append(row)
            size += count_bytes(row)
            if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
                await asyncio.sleep(0)
                yield batch
                batch = []
                size = 0
        yield batch

    async def count(self, table: Table) -> int:
        """Return the number of rows of a table."""
        rows = self._connection.execute(f"SELECT count(*) FROM {table.name}").fetchall()
        return cast(int, rows[0][0])

    async def read_counters(self) -> dict[str, int]:
        """Return the last value of each table that numbers its rows."""
        return {str(name): cast(int, seq) for name, seq in self._connection.execute(_COUNTERS)}


@asynccontextmanager
async def open_source(entry: Entry) -> AsyncIterator[SqliteSource]:
    """Open the source of a copy, and turn the errors of its driver into public errors.

    Raises:
        Conflict: another process has the file open.
        Unavailable: it does not exist or cannot be used.
        SchemaMismatch: it does not have the schema of this code.
    """
    # This also writes the log of a killed server into the file, and removes the index of that log,
    # which would be taken for one that has lost its log after a connection without an index.
    await check_schema(entry)
    path = sqlite_path(entry.url)
    try:
        alone = connection.connect_alone(path)
        try:
            yield SqliteSource(path, alone)
        finally:
            alone.close(True)
    except apsw.Error as error:
        raise connection.to_public_error(error, str(path)) from None
