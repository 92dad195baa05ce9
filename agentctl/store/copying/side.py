"""The interface of a database that takes part in a copy, as its source or as its target."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias, TypeVar

from agentctl.config.databases import display_url
from agentctl.config.settings import Database as Entry
from agentctl.store.copying.tables import Key, Row, Table
from agentctl.store.database import Work

T = TypeVar("T")

Batches: TypeAlias = "AsyncGenerator[Sequence[Row], None]"

BATCH_ROWS = 5_000
"""Maximum number of rows that are held in memory, and written in one transaction."""

BATCH_BYTES = 8_000_000
"""Bytes of rows at which a batch ends."""

LOCK_SECONDS = 30.0
"""Maximum wait for the locks of a source."""

LOCK_ATTEMPT_SECONDS = 1.5
"""Maximum duration of one attempt, for which writers wait as well. PostgreSQL cancels an automatic
vacuum that is in the way after 1 s (`deadlock_timeout`)."""

TRIGGERS = RECORDER, GUARD, DRAIN = "agentctl_copy", "agentctl_moved", "agentctl_drain"
"""Beginnings of the names of triggers: they record changes, refuse writes, refuse new runs."""

LOCAL_TABLES = ("workers", "leases")
"""The tables of processes: not copied, but a database that has moved refuses their rows, too."""


def count_bytes(row: Row) -> int:
    """Return the approximate size of a row."""
    return sum(len(value) for value in row if isinstance(value, (str, bytes)))


def name_place(entry: Entry) -> str:
    """Return the `place` of a database for messages and for the records of a copy."""
    place = display_url(entry.url)
    return f"{place} (schema {entry.search_path})" if entry.search_path else place


class Side(Protocol):
    """A database of a copy, used by one task.

    Reads see one state within `snapshot` and `locked`. Methods raise the errors of the driver; the
    caller turns them into public ones by `to_public_error`.

    Attributes:
        place: the file, or the URL without a password, for messages.
    """

    place: str

    async def close(self) -> None:
        """Close the connections."""
        ...

    def to_public_error(self, error: Exception) -> Exception:
        """Return the public error for an error of the driver, and log its text."""
        ...

    async def read(self, work: Work[T]) -> T:
        """Run a unit that reads."""
        ...

    async def write(self, work: Work[T]) -> T:
        """Run a unit in a transaction, or in the open one of `locked` or `transaction`."""
        ...

    def snapshot(self) -> AbstractAsyncContextManager[None]:
        """Let all reads of the block see one state. Others go on writing."""
        ...

    def locked(self, *, exclusive: bool = False) -> AbstractAsyncContextManager[None]:
        """Let no one else write. The block is a transaction, undone if it raises.

        Args:
            exclusive: True to let no one read, either, where triggers are dropped.

        Raises:
            Unavailable: others held locks for `LOCK_SECONDS`.
        """
        ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Make the writes of the block one transaction, undone if it raises."""
        ...

    async def identify(self) -> str:
        """Return a text that only this database has, and that its URL does not change."""
        ...

    async def read_batch(self, table: Table, after: Key | None) -> Sequence[Row]:
        """Return the first rows of a table after a key, in the order of the key; None: all keys."""
        ...

    def scan(self, table: Table) -> Batches:
        """Return all rows of a table in any order, in bounded batches."""
        ...

    async def read_rows(self, table: Table, keys: Sequence[Key]) -> list[Row]:
        """Return the rows with these keys, in any order."""
        ...

    async def count(self, table: Table) -> int:
        """Return the number of rows of a table."""
        ...

    async def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert rows that do not exist."""
        ...

    async def upsert(self, table: Table, rows: Sequence[Row]) -> None:
        """Insert rows, or replace the values of those that exist."""
        ...

    async def delete(self, table: Table, keys: Sequence[Key]) -> None:
        """Delete the rows with these keys."""
        ...

    async def forget_changes(self, numbers: Sequence[int]) -> None:
        """Delete recorded changes."""
        ...

    async def read_counters(self) -> dict[str, int]:
        """Return the last value of each table that numbers its rows."""
        ...

    async def set_counters(self, counters: dict[str, int]) -> None:
        """Set these values, so that no table uses a number twice."""
        ...

    async def record_changes(self, tables: Sequence[Table]) -> None:
        """Create the triggers that record each change. Call it in `locked`.

        Others let no run start while `drains_until` lies ahead.
        """
        ...

    async def refuse_writes(self, tables: Sequence[Table]) -> None:
        """Create the triggers that refuse every write. Call it in `locked`."""
        ...

    async def drop_triggers(self) -> None:
        """Drop the triggers of `record_changes`. Call it in an exclusive `locked`."""
        ...

    async def suspend_guards(self) -> None:
        """Suspend the triggers of a target that refuse changes: the source has allowed them."""
        ...

    async def restore_guards(self) -> None:
        """Let the suspended triggers work again."""
        ...

    async def drop_indexes(self) -> None:
        """Drop the indexes of a target that a copy does not need, if that makes it faster."""
        ...

    async def create_index(self) -> bool:
        """Create one of the indexes that a target lacks. Return False if it lacks none."""
        ...
