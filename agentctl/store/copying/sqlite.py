"""A SQLite file as the source of a copy.

Statements run on the event loop: the process has nothing else to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar, cast

import apsw

from agentctl.config.databases import sqlite_path
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
from agentctl.store.sqlite import connection

T = TypeVar("T")

LOCK_SECONDS = 30.0
"""Maximum wait for the lock of the source."""

RECORDER = "agentctl_copy"
"""Beginning of the names of the triggers that record changes."""

GUARD = "agentctl_moved"
"""Beginning of the names of the triggers that refuse writes."""

DRAIN = "agentctl_drain"
"""Beginning of the names of the triggers that refuse new runs."""

TRIGGERS = (RECORDER, GUARD, DRAIN)

LOCAL_TABLES = ("workers", "leases")
"""The tables of processes: not copied, but a database that has moved refuses their rows, too."""

_TRIGGERS = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
_COUNTERS = "SELECT name, seq FROM sqlite_sequence"
_NOW = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
_OPERATIONS = ("INSERT", "UPDATE", "DELETE")


class SqliteSource:
    """A file that is copied, used by one task. Use `open_source`.

    Reads see one state within `snapshot` and `locked`. Methods raise the errors of the driver.

    Attributes:
        place: the file, for messages.
    """

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self._reader = connection.connect_reader(path)
        self._writer = connection.connect_writer(path, connection.BusyHandler(LOCK_SECONDS))
        self._reading = self._reader

    def close(self) -> None:
        """Close the connections."""
        self._reader.close(True)
        self._writer.close(True)

    async def read(self, work: Work[T]) -> T:
        """Run a unit that reads."""
        return connection.run_unit(self._reading, work)

    async def write(self, work: Work[T]) -> T:
        """Run a unit in a transaction, or in the open one of `locked`."""
        if self._writer.in_transaction:
            return connection.run_unit(self._writer, work)
        async with self._transaction():
            return connection.run_unit(self._writer, work)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        """Let all reads of the block see one state. Others go on writing."""
        self._reader.execute("BEGIN")
        try:
            self._reader.execute("SELECT 1 FROM copy_state").fetchall()  # it begins with a read
            yield
        finally:
            self._reader.execute("COMMIT")

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Let no one else write. The block is a transaction, undone if it raises."""
        async with self._transaction():
            self._reading = self._writer
            try:
                yield
            finally:
                self._reading = self._reader

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writer.execute("COMMIT")
        finally:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")

    async def read_batch(self, table: Table, after: Key | None) -> Sequence[Row]:
        """Return the first rows of a table after a key, in the order of the key; None: all keys."""
        keys = ", ".join(table.key_columns)
        marks = ", ".join("?" * len(table.key))
        where = "" if after is None else f" WHERE ({keys}) > ({marks})"
        async with aclosing(self._fetch(table, f"{where} ORDER BY {keys}", after or ())) as batches:
            return await anext(batches)

    def scan(self, table: Table) -> Batches:
        """Return all rows of a table in any order, in bounded batches."""
        return self._fetch(table, "", ())

    async def _fetch(self, table: Table, rest: str, values: Key) -> Batches:
        found = self._reading.execute(
            f"SELECT {', '.join(table.columns)} FROM {table.name}{rest}", values
        )
        batch = list[Row]()
        size = 0
        try:
            for row in cast("Iterator[Row]", found):
                batch.append(row)
                size += count_bytes(row)
                if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
                    await asyncio.sleep(0)
                    yield batch
                    batch = []
                    size = 0
            yield batch
        finally:
            found.close()  # an open cursor keeps the snapshot

    async def read_rows(self, table: Table, keys: Sequence[Key]) -> list[Row]:
        """Return the rows with these keys, in any order."""
        where = " AND ".join(f"{name} = ?" for name in table.key_columns)
        found = self._reading.executemany(
            f"SELECT {', '.join(table.columns)} FROM {table.name} WHERE {where}", keys
        )
        return cast("list[Row]", found.fetchall())

    async def count(self, table: Table) -> int:
        """Return the number of rows of a table."""
        rows = self._reading.execute(f"SELECT count(*) FROM {table.name}").fetchall()
        return cast(int, rows[0][0])

    async def forget_changes(self, numbers: Sequence[int]) -> None:
        """Delete recorded changes."""
        async with self._transaction():
            delete = "DELETE FROM copy_changes WHERE seq = ?"
            self._writer.executemany(delete, [(number,) for number in numbers])

    async def read_counters(self) -> dict[str, int]:
        """Return the last value of each table that numbers its rows."""
        return {str(name): cast(int, seq) for name, seq in self._reading.execute(_COUNTERS)}

    async def record_changes(self, tables: Sequence[Table]) -> None:
        """Create the triggers that record each change. Call it in `locked`.

        Others let no run start while `drains_until` lies ahead.
        """
        for table in tables:
            for operation, row in zip(_OPERATIONS, ("NEW", "NEW", "OLD"), strict=True):
                record = f"INSERT INTO copy_changes (table_name, row_key) SELECT '{table.name}', "
                body = f"{record}{_key_json(table, row)};"
                if operation == "UPDATE":
                    former = _key_json(table, "OLD")
                    body += f" {record}{former} WHERE {former} <> {_key_json(table, 'NEW')};"
                self._writer.execute(
                    f"CREATE TRIGGER {RECORDER}_{table.name}_{operation.lower()}"
                    f" AFTER {operation} ON {table.name} BEGIN {body} END"
                )

        draining = f"(SELECT drains_until FROM copy_state) > {_NOW}"
        self._writer.execute(
            f"CREATE TRIGGER {DRAIN}_starts BEFORE INSERT ON runs"
            f" WHEN NEW.parent_run_id IS NULL AND {draining}"
            f" BEGIN SELECT RAISE(ABORT, '{connection.MOVING_TEXT}'); END"
        )
        self._writer.execute(
            f"CREATE TRIGGER {DRAIN}_claims BEFORE UPDATE OF owner ON runs"
            f" WHEN OLD.owner IS NULL AND NEW.owner IS NOT NULL"
            f" AND NEW.parent_run_id IS NULL AND {draining}"
            " BEGIN SELECT RAISE(IGNORE); END"
        )

    async def refuse_writes(self, tables: Sequence[Table]) -> None:
        """Create the triggers that refuse every write. Call it in `locked`."""
        for name in (*(table.name for table in tables), *LOCAL_TABLES):
            for operation in _OPERATIONS:
                self._writer.execute(
                    f"CREATE TRIGGER {GUARD}_{name}_{operation.lower()} BEFORE {operation}"
                    f" ON {name} BEGIN SELECT RAISE(ABORT, '{connection.MOVED_TEXT}'); END"
                )

    async def drop_triggers(self) -> None:
        """Drop the triggers of `record_changes`. Call it in `locked`."""
        for (name,) in self._writer.execute(_TRIGGERS).fetchall():
            if str(name).startswith((RECORDER, DRAIN)):
                self._writer.execute(f"DROP TRIGGER {name}")


@asynccontextmanager
async def open_source(entry: Entry) -> AsyncIterator[SqliteSource]:
    """Open the source of a copy, and turn the errors of its driver into public ones.

    Raises:
        Unavailable: it does not exist or cannot be used.
        SchemaMismatch: it does not have the schema of this code.
    """
    await check_schema(entry)
    source = SqliteSource(sqlite_path(entry.url))
    try:
        yield source
    except apsw.Error as error:
        raise connection.to_public_error(error, source.place) from None
    finally:
        source.close()


def _key_json(table: Table, row: str) -> str:
    return f"json_array({', '.join(f'{row}.{name}' for name in table.key_columns)})"
