"""A SQLite file as the source or the target of a copy (`side.Side`).

Statements run on the event loop: the process has nothing else to do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar, cast

import apsw

from agentctl.store.copying.side import (
    BATCH_BYTES,
    BATCH_ROWS,
    DRAIN,
    GUARD,
    LOCAL_TABLES,
    LOCK_SECONDS,
    RECORDER,
    Batches,
    count_bytes,
)
from agentctl.store.copying.tables import Key, Row, Table
from agentctl.store.database import Work
from agentctl.store.schema import SCHEMA_VERSION
from agentctl.store.sqlite.connection import (
    MOVED_TEXT,
    MOVING_TEXT,
    BusyHandler,
    connect_reader,
    connect_writer,
    run_unit,
    to_public_error,
)
from agentctl.store.sqlite.schema import build_in_memory

T = TypeVar("T")

CACHE_BYTES = 268_435_456
"""Maximum size of the page cache. The rows of a batch are inserted at random places of each index:
with the default of 2 MB, a page would be written many times in one transaction."""

_TRIGGERS = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
_INDEXES = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"

# A deletion looks for the rows that refer to a row.
_REFERENCE_INDEXES = f"""
{_INDEXES} AND EXISTS (SELECT 1 FROM pragma_foreign_key_list(tbl_name) reference
JOIN pragma_index_info(sqlite_master.name) part ON part.name = reference."from" AND part.seqno = 0)
"""
_COUNTERS = "SELECT name, seq FROM sqlite_sequence"
_SET_COUNTER = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?"
_NEW_COUNTER = """
INSERT INTO sqlite_sequence (name, seq)
SELECT ?, ? WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = ?)
"""
_NOW = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
_OPERATIONS = ("INSERT", "UPDATE", "DELETE")


class SqliteSide:
    """A file of a copy.

    Args:
        path: the file, which has the schema of this code.
    """

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self._busy_handler = BusyHandler(LOCK_SECONDS)
        self._reader = connect_reader(path)
        self._writer = connect_writer(path, self._busy_handler)
        self._writer.pragma("cache_size", -CACHE_BYTES // 1_024)
        self._reading = self._reader

    async def close(self) -> None:
        self._reader.close(True)
        self._writer.close(True)

    def to_public_error(self, error: Exception) -> Exception:
        return to_public_error(error, self.place) if isinstance(error, apsw.Error) else error

    async def read(self, work: Work[T]) -> T:
        return run_unit(self._reading, work)

    async def write(self, work: Work[T]) -> T:
        if self._writer.in_transaction:
            return run_unit(self._writer, work)
        async with self.transaction():
            return run_unit(self._writer, work)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        self._reader.execute("BEGIN")
        try:
            self._reader.execute("SELECT 1 FROM copy_state").fetchall()  # it begins with a read
            yield
        finally:
            self._reader.execute("COMMIT")

    @asynccontextmanager
    async def locked(self, *, exclusive: bool = False) -> AsyncIterator[None]:
        async with self.transaction():
            self._reading = self._writer
            try:
                yield
            finally:
                self._reading = self._reader

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writer.execute("COMMIT")
        finally:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")

    async def identify(self) -> str:
        return os.path.realpath(self.place)

    async def read_batch(self, table: Table, after: Key | None) -> Sequence[Row]:
        keys = ", ".join(table.key_columns)
        marks = ", ".join("?" * len(table.key))
        where = "" if after is None else f" WHERE ({keys}) > ({marks})"
        async with aclosing(self._fetch(table, f"{where} ORDER BY {keys}", after or ())) as batches:
            return await anext(batches)

    def scan(self, table: Table) -> Batches:
        return self._fetch(table, "", ())

    async def _fetch(self, table: Table, rest: str, values: Key) -> Batches:
        found = self._reading.execute(
            f"SELECT {', '.join(table.columns)} FROM {table.name}{rest}", values
        )
        try:
            for rows in _in_batches(cast("Iterator[Row]", found)):
                await asyncio.sleep(0)
                yield rows
        finally:
            found.close()  # an open cursor keeps the snapshot

    async def read_rows(self, table: Table, keys: Sequence[Key]) -> list[Row]:
        found = self._reading.executemany(
            f"SELECT {', '.join(table.columns)} FROM {table.name} WHERE {_where_key(table)}", keys
        )
        return cast("list[Row]", found.fetchall())

    async def count(self, table: Table) -> int:
        rows = self._reading.execute(f"SELECT count(*) FROM {table.name}").fetchall()
        return cast(int, rows[0][0])

    async def insert(self, table: Table, rows: Sequence[Row]) -> None:
        self._writer.executemany(_build_insert(table), rows)

    async def upsert(self, table: Table, rows: Sequence[Row]) -> None:
        others = [name for name in table.columns if name not in table.key_columns]
        values = ", ".join(f"{name} = excluded.{name}" for name in others)
        then = f"UPDATE SET {values}" if others else "NOTHING"
        conflict = f" ON CONFLICT ({', '.join(table.key_columns)}) DO {then}"
        self._writer.executemany(_build_insert(table) + conflict, rows)

    async def delete(self, table: Table, keys: Sequence[Key]) -> None:
        self._writer.executemany(f"DELETE FROM {table.name} WHERE {_where_key(table)}", keys)

    async def forget_changes(self, numbers: Sequence[int]) -> None:
        async with self.transaction():
            delete = "DELETE FROM copy_changes WHERE seq = ?"
            self._writer.executemany(delete, [(number,) for number in numbers])

    async def read_counters(self) -> dict[str, int]:
        return {str(name): cast(int, seq) for name, seq in self._reading.execute(_COUNTERS)}

    async def set_counters(self, counters: dict[str, int]) -> None:
        numbered = {str(name) for name, sql in _expected("table") if "AUTOINCREMENT" in sql.upper()}
        for name, value in counters.items():
            if name in numbered:
                self._writer.execute(_SET_COUNTER, (value, name))
                self._writer.execute(_NEW_COUNTER, (name, value, name))

    async def record_changes(self, tables: Sequence[Table]) -> None:
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
            f" BEGIN SELECT RAISE(ABORT, '{MOVING_TEXT}'); END"
        )
        self._writer.execute(
            f"CREATE TRIGGER {DRAIN}_claims BEFORE UPDATE OF owner ON runs"
            f" WHEN OLD.owner IS NULL AND NEW.owner IS NOT NULL"
            f" AND NEW.parent_run_id IS NULL AND {draining}"
            " BEGIN SELECT RAISE(IGNORE); END"
        )

    async def refuse_writes(self, tables: Sequence[Table]) -> None:
        for name in (*(table.name for table in tables), *LOCAL_TABLES):
            for operation in _OPERATIONS:
                self._writer.execute(
                    f"CREATE TRIGGER {GUARD}_{name}_{operation.lower()} BEFORE {operation}"
                    f" ON {name} BEGIN SELECT RAISE(ABORT, '{MOVED_TEXT}'); END"
                )

    async def drop_triggers(self) -> None:
        for name, _ in self._writer.execute(_TRIGGERS).fetchall():
            if str(name).startswith((RECORDER, DRAIN)):
                self._writer.execute(f"DROP TRIGGER {name}")

    async def suspend_guards(self) -> None:
        for name, sql in self._writer.execute(_TRIGGERS).fetchall():
            if _is_guard(str(sql)):
                self._writer.execute(f"DROP TRIGGER {name}")

    async def restore_guards(self) -> None:
        for name, sql in _expected("trigger"):
            if _is_guard(sql):
                self._writer.execute(f"DROP TRIGGER IF EXISTS {name}")
                self._writer.execute(sql)

    async def drop_indexes(self) -> None:
        needed = {str(name) for (name,) in self._writer.execute(_REFERENCE_INDEXES)}
        for name, _ in _expected("index"):
            if name not in needed:
                self._writer.execute(f"DROP INDEX {name}")

    async def create_index(self) -> bool:
        present = {str(name) for (name,) in self._writer.execute(_INDEXES)}
        for name, sql in _expected("index"):
            if name not in present:
                self._writer.execute(sql)
                return True
        return False


def _in_batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch, size = list[Row](), 0
    for row in rows:
        batch.append(row)
        size += count_bytes(row)
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def _where_key(table: Table) -> str:
    return " AND ".join(f"{name} = ?" for name in table.key_columns)


def _key_json(table: Table, row: str) -> str:
    return f"json_array({', '.join(f'{row}.{name}' for name in table.key_columns)})"


def _build_insert(table: Table) -> str:
    marks = ", ".join("?" * len(table.columns))
    return f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({marks})"


def _is_guard(sql: str) -> bool:
    """Return True for a trigger that may refuse a change or a deletion."""
    words = " ".join(sql.split())
    return " BEFORE UPDATE " in words or " BEFORE DELETE " in words


def _expected(kind: str) -> list[tuple[str, str]]:
    found = build_in_memory(SCHEMA_VERSION).execute(
        "SELECT name, sql FROM sqlite_master WHERE type = ? AND sql IS NOT NULL", (kind,)
    )
    return [(str(name), str(sql)) for name, sql in found.fetchall()]
