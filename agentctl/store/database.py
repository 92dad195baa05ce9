"""The seam: one way to say what is read and written, whatever database is behind it.

A unit of work is a generator: it yields statements, is sent their rows, and returns its result.
So a repository composes statements into transactions with `yield from`, knows neither threads nor
drivers, and each driver runs a whole unit where that is cheapest: SQLite on its writer thread,
many units a commit; PostgreSQL on a connection of its pool.

    def rename(session_id: str, name: str) -> Work[bool]:
        rows = yield Statement(RENAME, {"session_id": session_id, "name": name})
        return bool(rows)

Statements are `Sql`: the portable subset of SQLite and PostgreSQL, parameters as `:name`, columns
of TEXT and BIGINT only, `cast(:x as text)` where a type is not evident, `NULLS LAST` spelled out,
RETURNING for what was changed. The suite has a real PostgreSQL parse every one of them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = ["Database", "Row", "Sql", "Statement", "Value", "Work"]

Value = str | int | None
Row = Sequence[Any]
T = TypeVar("T")


class Sql(str):
    """A statement in the portable subset, with `:name` parameters."""

    __slots__ = ()


class Statement(NamedTuple):
    """A statement with the values of its parameters."""

    sql: Sql
    parameters: Mapping[str, Value] = {}


Work = Generator[Statement, list[Row], T]
"""A unit of work with a result of type T. What it raises rolls all of it back."""


class Database(Protocol):
    """An open database. Failures are `errors.Unavailable`; a unit's own exceptions pass through."""

    id: str

    async def read(self, work: Work[T], *, large: bool = False) -> T:
        """Run a unit that only reads, on one snapshot. `large`: keep it off the event loop."""
        ...

    async def write(self, work: Work[T]) -> T:
        """Run a unit in one transaction; returns once it is durable."""
        ...

    async def close(self) -> None: ...
