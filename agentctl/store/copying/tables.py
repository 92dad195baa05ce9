"""The tables of a copy in the order of their references, and sums of the hashes of their rows.

Both engines have the same tables, so they are read from the schema that the migrations create. No
table is named here but those that belong to one database or to its processes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from agentctl import errors
from agentctl.config.databases import display_url
from agentctl.config.settings import Database as Entry
from agentctl.store.migrating import read_version
from agentctl.store.schema import MIGRATE_COMMAND, SCHEMA_VERSION, check_newer
from agentctl.store.sqlite.schema import build_in_memory

NOT_COPIED = frozenset(
    {
        "schema_version",  # each database has its own migrations
        "workers",  # the processes of this database, and what one of them does for all
        "leases",
        "blob_checks",  # deletions in the target note the same bytes
        "search_texts",  # the target indexes its rows, in the order of its engine
        "copy_state",  # the copy itself
        "copy_tables",  # empty, and not used by this version
        "copy_changes",
    }
)

Value = str | int | bytes | float | None
Row = tuple[Value, ...]

Batches: TypeAlias = "AsyncGenerator[Sequence[Row], None]"

BATCH_ROWS = 5_000
"""Maximum number of rows that are held in memory, and written by one statement."""

BATCH_BYTES = 8_000_000
"""Bytes of rows at which a batch ends."""

_MODULUS = 1 << 256

_TABLES = """
SELECT name FROM pragma_table_list
WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name
"""
_COLUMNS = "SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 0 ORDER BY cid"
_REFERENCES = 'SELECT "table" FROM pragma_foreign_key_list(?)'


class Table(NamedTuple):
    """A table that is copied, with the names of its columns."""

    name: str
    columns: tuple[str, ...]


def count_bytes(row: Row) -> int:
    """Return the approximate size of a row."""
    return sum(len(value) for value in row if isinstance(value, (str, bytes)))


def load_tables() -> tuple[Table, ...]:
    """Return the tables that are copied; each comes after the tables that it refers to."""
    schema = build_in_memory(SCHEMA_VERSION)
    tables = dict[str, Table]()
    references = dict[str, set[str]]()
    for (name,) in schema.execute(_TABLES).fetchall():
        if name in NOT_COPIED:
            continue
        columns = schema.execute(_COLUMNS, (name,)).fetchall()
        tables[str(name)] = Table(str(name), tuple(str(column) for (column,) in columns))
        references_of_table = schema.execute(_REFERENCES, (name,)).fetchall()
        references[str(name)] = {str(parent) for (parent,) in references_of_table} - {name}
    return tuple(tables[name] for name in TopologicalSorter(references).static_order())


async def check_schema(entry: Entry) -> None:
    """Check that a database of a copy has the schema of this code.

    Raises:
        Unavailable: it does not exist or cannot be used.
        SchemaMismatch: it has another schema.
    """
    version = await read_version(entry)
    place = display_url(entry.url)
    if version is None:
        raise errors.Unavailable("There is no database yet", cause=f"{place} has none")
    if version.number != SCHEMA_VERSION:
        if version.moved_to is None and version.copied_from is None:
            check_newer(version, place)
        is_older = version.number < SCHEMA_VERSION
        raise errors.SchemaMismatch(
            "Both databases of a copy must have the schema of this agentctl",
            cause=f"{place} has schema {version.number}, this one {SCHEMA_VERSION}",
            command=MIGRATE_COMMAND if is_older else None,
            hint=None if is_older else "use the version of agentctl that migrated it",
        )


@dataclass(slots=True)
class TableSum:
    """A number of rows, and the sum of their hashes modulo 2^256: the same in any order.

    The hash of a row is the SHA-256 of its values, in the order of `Table.columns`.
    """

    rows: int = 0
    total: int = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Add the hashes of rows."""
        for row in rows:
            self.rows += 1
            self.total = (self.total + _hash(row)) % _MODULUS

    @property
    def digest(self) -> str:
        """The sum in hexadecimal."""
        return f"{self.total:064x}"


def _hash(row: Row) -> int:
    return int.from_bytes(sha256(repr(row).encode("utf-8", "surrogatepass")).digest())
