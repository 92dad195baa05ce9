"""The seam: one way to say what is read and written, whatever database is behind it.

A unit of work yields statements, is sent their rows, and returns its result. So a repository
composes statements into transactions with `yield from`, knows neither threads nor drivers, and each
driver runs a whole unit where that is cheapest: SQLite on its writer thread, many units a commit;
PostgreSQL on a connection of its pool. A unit can be run again, from its beginning, when the
database has undone it: what it leaves in Python must not matter then.

    @unit
    def rename(session_id: str, name: str) -> Steps[bool]:
        rows = yield Statement(RENAME, {"session_id": session_id, "name": name})
        return bool(rows)

Statements are `Sql`: the portable subset of SQLite and PostgreSQL, parameters as `:name`, columns
of TEXT and BIGINT only, `cast(:x as text)` where a type is not evident, `NULLS LAST` spelled out,
RETURNING for what was changed, `FOR UPDATE` or `FOR SHARE` at the end of a SELECT of rows that must
not change before the commit (SQLite, which has one writer, is not shown that), `utf8(column)` for
the bytes of a text that is sent on as it is, which would be decoded and encoded again. Who holds
the row of a session waits for none of its live runs: the end of a run takes that row behind the
run's own.
Text is ordered by code point and `lower()` folds ASCII letters only, on both (see the migrations).
The suite has a real PostgreSQL parse every one of them.

Whether a database answers, and what its clock was at last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from pathlib import Path
from types import CodeType
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

__all__ = [
    "PROBE",
    "Database",
    "Large",
    "Load",
    "Longer",
    "Row",
    "Sql",
    "Statement",
    "Steps",
    "Value",
    "Work",
    "compile_for_postgres",
    "compile_for_sqlite",
    "get_newest_time",
    "probe",
    "unit",
]

Value = str | int | None
Row = Sequence[Any]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")


class Sql(str):
    """A statement in the portable subset, with `:name` parameters."""

    __slots__ = ()


class Statement(NamedTuple):
    """A statement with the values of its parameters."""

    sql: Sql
    parameters: Mapping[str, Value] = {}


Steps = Generator[Statement, list[Row], T]
"""One run of a unit with a result of type T."""


class Work(Generic[T_co]):
    """A unit of work with a result of type T. What it raises rolls all of it back.

    Iterating over it runs it from its beginning, each time.

    Attributes:
        code: of its function: the same for all units of a kind.
    """

    __slots__ = ("_begin", "code")

    def __init__(self, code: CodeType, begin: Callable[[], Steps[T_co]]) -> None:
        self.code = code
        self._begin = begin

    def __iter__(self) -> Steps[T_co]:
        return self._begin()


def unit(function: Callable[P, Steps[T]]) -> Callable[P, Work[T]]:
    """Make a unit of work of a function that yields statements."""
    code = function.__code__

    @wraps(function)
    def bound(*args: P.args, **kwargs: P.kwargs) -> Work[T]:
        return Work(code, partial(function, *args, **kwargs))

    return bound


Large = bool | Literal["perhaps"]
"""Whether a read takes long: `perhaps` where nobody knows before, as of a page of a list."""


class Longer(Exception):
    """A unit has more statements than it was allowed."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy this process's connections to a database are.

    Attributes:
        kind: which driver.
        waiting: units of work that wait for a connection, or for their turn to write.
        in_use: connections that work on a unit.
        size: connections that there can be.
    """

    kind: Literal["sqlite", "postgres"]
    waiting: int
    in_use: int
    size: int


class Database(Protocol):
    """An open database. Failures are `errors.Unavailable`; a unit's own exceptions pass through."""

    id: str

    @property
    def lock_folder(self) -> Path | None:
        """Where the processes that use this database keep lock files, which may have to be made;
        None where they share no files."""
        ...

    async def check(self) -> None:
        """See that it answers and that its schema is ours; raises what opening it may raise."""
        ...

    async def read(self, work: Work[T], *, large: Large = False) -> T:
        """Run a unit that only reads, on one snapshot. `large`: keep it off the event loop, or,
        where it is that `perhaps`, what is long of it."""
        ...

    async def write(self, work: Work[T]) -> T:
        """Run a unit in one transaction; returns once it is durable."""
        ...

    def write_blocking(self, work: Work[T]) -> T:
        """Like `write`, for a thread without an event loop, which it holds up."""
        ...

    async def clock(self) -> int:
        """What the time is where beats are written, in microseconds."""
        ...

    def changes(self) -> int:
        """A number that changes when the database was written to, by whichever process."""
        ...

    def load(self) -> Load:
        """How busy it is now. Costs nothing, and never fails, open or not."""
        ...

    async def close(self) -> None: ...


_TOKEN = re.compile(
    r"""
      '(?:[^']|'')*'            # a literal
    | "(?:[^"]|"")*"            # a quoted name
    | --[^\n]*                  # a comment to the end of the line
    | /\*.*?\*/                 # a comment between marks
    | ::                        # a PostgreSQL cast
    | :(?P<name>[A-Za-z_]\w*)   # a parameter
    """,
    re.VERBOSE | re.DOTALL,
)


_LOCK = re.compile(r"\s+FOR (?:UPDATE|SHARE)(?=\s*\Z|\s+ON CONFLICT\b)")


_UTF8 = re.compile(r"\butf8\((\w+)\)")


@cache
def compile_for_sqlite(sql: Sql) -> str:
    """The statement as SQLite takes it: without the lock on the rows of its SELECT."""
    return _UTF8.sub(r"CAST(\1 AS BLOB)", _LOCK.sub("", sql))


@cache
def compile_for_postgres(sql: Sql) -> tuple[str, tuple[str, ...]]:
    """The statement with `$1`, `$2`, ... for its parameters, as asyncpg takes it.

    Returns:
        The text, and the names of the parameters in the order of their numbers; a name that occurs
        twice has one number.
    """
    numbers: dict[str, int] = {}

    def numbered(token: re.Match[str]) -> str:
        name = token["name"]
        if name is None:
            return token[0]
        return f"${numbers.setdefault(name, len(numbers) + 1)}"

    text = _TOKEN.sub(numbered, _UTF8.sub(r"convert_to(\1, 'UTF8')", sql))
    return text, tuple(numbers)


PROBE = Sql("SELECT count(*) FROM schema_version")

# Each is the end of an index, but for the workers, who are few.
_NEWEST = Sql(
    "SELECT max(at) FROM (SELECT max(created_at) AS at FROM sessions"
    " UNION ALL SELECT max(created_at) FROM runs"
    " UNION ALL SELECT max(beat) FROM workers) AS times"
)


@unit
def probe() -> Steps[None]:
    """Read one small thing; fails when the database does not answer."""
    yield Statement(PROBE)


@unit
def get_newest_time() -> Steps[int | None]:
    """The latest time that was written down when something was made, in microseconds."""
    rows = yield Statement(_NEWEST)
    latest: int | None = rows[0][0]
    return latest
