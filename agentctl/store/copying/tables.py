"""The tables of a copy in the order of their references, and sums of the hashes of their rows.

Both engines have the same tables, so they are read from the schema that the migrations create. No
table is named here but those that belong to one database or to its processes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from graphlib import TopologicalSorter
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from agentctl.light_dataclass import dataclass
from agentctl.store.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    import apsw

NOT_COPIED = frozenset(
    {
        "schema_version",  # each database has its own migrations
        "workers",  # the processes of this database, and what one of them does for all
        "leases",
        "search_texts",  # the target indexes its rows, in the order of its engine
        "copy_state",  # the copy itself
        "copy_tables",
        "copy_changes",
    }
)

Value = str | int | bytes | float | None
Row = tuple[Value, ...]
Key = tuple[Value, ...]
"""The values of the primary key of a row."""

Batches: TypeAlias = "AsyncGenerator[Sequence[Row], None]"

BATCH_ROWS = 5_000
"""Maximum number of rows that are held in memory, and written in one transaction."""

BATCH_BYTES = 8_000_000
"""Bytes of rows at which a batch ends."""

_MODULUS = 1 << 256

_TABLES = """
SELECT name FROM pragma_table_list
WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name
"""
_COLUMNS = "SELECT name, type, pk FROM pragma_table_xinfo(?) WHERE hidden = 0 ORDER BY cid"
_REFERENCES = 'SELECT "table" FROM pragma_foreign_key_list(?)'


class Table(NamedTuple):
    """A table that is copied.

    Attributes:
        columns: the names of its columns.
        types: the types of its columns in SQLite: TEXT, INTEGER, BLOB or REAL.
        key: the positions of the columns of the primary key, in the order of the key.
    """

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[int, ...]

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the columns of the primary key."""
        return tuple(self.columns[position] for position in self.key)

    def only_key(self) -> Table:
        """Return the table with the columns of its key alone."""
        types = tuple(self.types[position] for position in self.key)
        return Table(self.name, self.key_columns, types, tuple(range(len(self.key))))

    def key_of(self, row: Sequence[Value]) -> Key:
        """Return the key of a row."""
        return tuple(row[position] for position in self.key)


def count_bytes(row: Row) -> int:
    """Return the approximate size of a row."""
    return sum(len(value) for value in row if isinstance(value, (str, bytes)))


def load_tables() -> tuple[Table, ...]:
    """Return the tables that are copied; each comes after the tables that it refers to."""
    from agentctl.store.sqlite.schema import build_in_memory

    return order_tables(build_in_memory(SCHEMA_VERSION))


def order_tables(schema: apsw.Connection) -> tuple[Table, ...]:
    """Return the tables of a schema, without virtual ones and those that stay.

    Raises:
        ValueError: tables refer to each other, or one has no primary key.
    """
    tables = dict[str, Table]()
    references = dict[str, set[str]]()
    for (name,) in schema.execute(_TABLES).fetchall():
        if name in NOT_COPIED:
            continue
        columns = schema.execute(_COLUMNS, (name,)).fetchall()
        keyed = sorted((pk, at) for at, (_, _, pk) in enumerate(columns) if pk)
        if not keyed:
            raise ValueError(f"table {name} has no primary key")
        tables[str(name)] = Table(
            str(name),
            tuple(str(column) for column, _, _ in columns),
            tuple(str(type_) for _, type_, _ in columns),
            tuple(at for _, at in keyed),
        )
        found = schema.execute(_REFERENCES, (name,)).fetchall()
        references[str(name)] = {str(parent) for (parent,) in found} - {name}
    return tuple(tables[name] for name in TopologicalSorter(references).static_order())


def write_key(key: Key) -> str:
    """Return a key as it is stored: a JSON array."""
    return json.dumps(key, ensure_ascii=False)


def read_key(text: str) -> Key:
    """Return the key of a stored text."""
    return tuple(json.loads(text))


@dataclass(slots=True)
class TableSum:
    """A number of rows, and the sum of their hashes modulo 2^256: the same in any order."""

    rows: int = 0
    total: int = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Add the hashes of rows."""
        for row in rows:
            self.rows += 1
            self.total = (self.total + hash_row(row)) % _MODULUS

    def remove(self, rows: Iterable[Row]) -> None:
        """Subtract the hashes of rows."""
        for row in rows:
            self.rows -= 1
            self.total = (self.total - hash_row(row)) % _MODULUS

    @property
    def digest(self) -> str:
        """The sum in hexadecimal."""
        return f"{self.total:064x}"


def hash_row(row: Row) -> int:
    """Return the SHA-256 of the values of a row, in the order of `Table.columns`."""
    return int.from_bytes(sha256(repr(row).encode("utf-8", "surrogatepass")).digest())
