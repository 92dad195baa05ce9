"""The interface of a database: units of work, and the drivers that run them.

A unit of work is a generator function: it yields statements, is sent their rows, and returns its
result. A repository composes units into one transaction with `yield from`, and knows neither
threads nor drivers. A driver runs a whole unit: SQLite on its writer thread, many units in one
commit; PostgreSQL on a connection of its pool. A driver may run a unit again from its beginning, if
the database has undone it: the first run must leave no effects in Python.

    @unit
    def rename(session_id: str, name: str) -> Steps[bool]:
        rows = yield Statement(RENAME, {"session_id": session_id, "name": name})
        return bool(rows)

Statements are `Sql`, the common subset of SQLite and PostgreSQL:

- parameters are `:name`, with `cast(:x as text)` where the type is not evident;
- columns are TEXT and BIGINT only; text is ordered by code point, and `lower()` folds ASCII letters
  only, on both engines (see the migrations);
- `NULLS LAST` is written out, and RETURNING reports changed rows;
- `FOR UPDATE` or `FOR SHARE` at the end of a SELECT locks rows that must not change before the
  commit; with `SKIP LOCKED` it leaves out the rows that other transactions have locked. SQLite has
  one writer, so it does not get these words. A transaction that has locked the row of a session
  must not wait for a live run of the session: the end of a run locks the row of the run first and
  the row of the session second;
- `exclusive(:x)` locks a text until the end of the transaction, and waits for the transactions that
  hold its lock; on SQLite, which has one writer, it does nothing;
- `utf8(column)` selects the bytes of a text that is sent on unchanged, to save decoding it;
- `short_words(column)` is a text; on PostgreSQL with a space after 200 characters without one, as
  its parser needs time that grows with their square;
- `json_member(column, :key)` is the JSON text of a member of a stored JSON object, NULL without it;
- `json_has(column, 'key', :text)` is true if the member is an array with a text, or is that text;
- `clock(:now)` is the time of the database server in microseconds UTC; on SQLite it is `:now`;
- `OVERWRITE_DELETED` lets SQLite overwrite the rows that the connection deletes from then on; on
  PostgreSQL it does nothing;
- `next_transaction()` is the number of the next transaction, and `oldest_transaction()` the number
  of the oldest open transaction, or of the next; on SQLite, which has one writer, both are 0.

The tests prepare every statement on a real PostgreSQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from agentctl.store.schema import StoredVersion
from agentctl.store.totals import ListTotals

if TYPE_CHECKING:
    from agentctl.store.outbox import Outbox

Value = str | int | None
Row = Sequence[Any]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")

ReadSize = Literal["small", "unknown", "large", "run"]
"""The expected cost of a read.

- `small`: a read by id, or another read that is known to be short.
- `unknown`: a read that is short in most cases, such as a page of a list.
- `large`: a read that may take many milliseconds.
- `run`: a read that may take as long, and that a live run waits for. It does not wait for `large`
  reads, of which there may be many.
"""

LEGS_TOPIC = "legs"
"""The topic of the runs that any server may claim."""

HALTS_TOPIC = "halts"
"""The topic of the changes of halts."""

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

_LOCK = re.compile(
    r"\s+FOR (?:UPDATE|SHARE)(?: OF \w+)?(?: SKIP LOCKED)?(?=\s*\Z|\s+ON CONFLICT\b|\))"
)

_UTF8 = re.compile(r"\butf8\((\w+)\)")

_SHORT_WORDS = re.compile(r"\bshort_words\((\w+)\)")

_EXCLUSIVE = re.compile(r"\bexclusive\((:\w+)\)")

_JSON_MEMBER = re.compile(r"\bjson_member\((\w+), (:\w+)\)")

_JSON_HAS = re.compile(r"\bjson_has\((\w+), ('\w+'), (:\w+)\)")

_CLOCK = re.compile(r"\bclock\((:\w+)\)")

_TRANSACTIONS = {
    "next_transaction()": "pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
    "oldest_transaction()": "pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
}

MAXIMUM_COMPILED = 16_384
"""Statements that are kept compiled. The filters of lists have more combinations."""

FAILURE_SECONDS = 10.0
"""Seconds after a failed write in which a process is not ready.

Longer than the time between heartbeats.
"""


class Statement(NamedTuple):
    """A statement with the values of its parameters."""

    sql: Sql
    parameters: Mapping[str, Value] = {}


Steps = Generator[Statement, list[Row], T]
"""One run of a unit with a result of type T."""


class Work(partial[Any], Generic[T_co]):
    """A unit of work with a result of type T. An exception that it raises undoes all its changes.

    Each iteration runs the unit from its beginning. It is a `partial`: a run builds and
    iterates dozens of units, and a `partial` does both without a Python frame.
    """

    single = False
    """True if the unit has one statement, in reads in most cases."""

    repeatable = False
    """True if a write of a single statement may also run twice, with the same result.

    It needs no separate transaction.
    """

    if TYPE_CHECKING:

        def __iter__(self) -> Steps[T_co]: ...

    else:
        __iter__ = partial.__call__

    def as_repeatable(self) -> Work[T_co]:
        """Return this unit as a repeatable one. It must be single."""
        work: Work[T_co] = SingleWork(self.func, *self.args, **self.keywords)
        work.repeatable = True
        return work


class SingleWork(Work[T_co]):
    """A unit that has one statement in most cases; see `single_unit`."""

    single = True


class SecondStatement(RuntimeError):
    """A unit outside a transaction has a second statement."""


def unit(function: Callable[P, Steps[T]]) -> Callable[P, Work[T]]:
    """Turn a function that yields statements into a unit of work."""
    return _make_unit(Work, function)


def single_unit(function: Callable[P, Steps[T]]) -> Callable[P, Work[T]]:
    """Turn a function that yields one statement in most cases into a unit of work.

    A read of such a unit needs no transaction: one statement is a snapshot already. If there is a
    second statement, the unit runs again in a transaction. In a write it raises `SecondStatement`.
    """
    return _make_unit(SingleWork, function)


def _make_unit(kind: type[Work[Any]], function: Callable[P, Steps[T]]) -> Callable[P, Work[T]]:
    is_method = "." in function.__qualname__.rpartition("<locals>.")[2]
    if not is_method:
        return partial(kind, function)

    # A partial binds no `self`.
    @wraps(function)
    def bound(*args: P.args, **kwargs: P.kwargs) -> Work[T]:
        return kind(function, *args, **kwargs)

    return bound


class Sql(str):
    """A statement in the common subset, with `:name` parameters.

    Each method returns a unit that runs only this statement.
    """

    __slots__ = ()

    @single_unit
    def execute(self, **values: Value) -> Steps[None]:
        """Run the statement and ignore its rows."""
        yield Statement(self, values)

    @single_unit
    def rows(self, build: Callable[..., T], **values: Value) -> Steps[list[T]]:
        """Return an object for each row, built from its columns."""
        return [build(*row) for row in (yield Statement(self, values))]

    @single_unit
    def first(self, build: Callable[..., T], **values: Value) -> Steps[T | None]:
        """Return an object for the first row, built from its columns; None without rows."""
        rows = yield Statement(self, values)
        return build(*rows[0]) if rows else None

    @single_unit
    def column(self, **values: Value) -> Steps[list[Any]]:
        """Return the first column of all rows."""
        return [row[0] for row in (yield Statement(self, values))]

    @single_unit
    def value(self, **values: Value) -> Steps[Any]:
        """Return the first column of the first row; None without rows."""
        rows = yield Statement(self, values)
        return rows[0][0] if rows else None

    @single_unit
    def count_rows(self, **values: Value) -> Steps[int]:
        """Return the number of rows, such as those that RETURNING reports."""
        return len((yield Statement(self, values)))

    @single_unit
    def has_rows(self, **values: Value) -> Steps[bool]:
        """Return True if there are rows, such as those that RETURNING reports."""
        return bool((yield Statement(self, values)))


def build_insert(table: str, columns: Sequence[str]) -> Sql:
    """Build the statement that inserts a row, with a parameter for each column."""
    parameters = ", ".join(f":{name}" for name in columns)
    return Sql(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({parameters})")


@dataclass(frozen=True, slots=True)
class Load:
    """The load of the connections of this process to a database."""

    kind: Literal["sqlite", "postgres"]
    """The engine."""

    waiting: int
    """Number of units of work that wait for a connection, or for the writer."""

    in_use: int
    """Number of connections that run a unit."""

    size: int
    """Maximum number of connections."""

    is_notified: bool | None = None
    """False if notifications of other processes do not arrive.

    None if that is not known, or if the engine needs no notifications.
    """


class Database(Protocol):
    """An open database.

    A failure of the database raises `errors.Unavailable`. Exceptions that a unit raises reach the
    caller unchanged.
    """

    id: str
    """The id in the configuration."""

    totals: ListTotals
    """Remembered totals of long lists."""

    outbox: Outbox
    """The webhooks of the configuration."""

    version: StoredVersion
    """The schema version when it was opened, or when the recorder read it last."""

    @property
    def write_failed(self) -> bool:
        """True if a write failed within `FAILURE_SECONDS` because nothing can be written.

        The cause may be a full disk or a lock of another program. Reads may work.
        """

    @property
    def is_late(self) -> bool:
        """True if new work would delay work that has started."""

    @property
    def lock_folder(self) -> Path | None:
        """The folder for lock files of the processes that use this database.

        The folder may not exist yet. None if the processes share no files.
        """

    async def check(self) -> None:
        """Check that the database answers and has the schema of this code.

        Raises the errors of `databases.open_database`.
        """

    async def read(self, work: Work[T], *, size: ReadSize = "small") -> T:
        """Run a unit that only reads, on one snapshot.

        A `large` read does not run on the event loop. A read of `unknown` size may start there, and
        is moved if it takes long.
        """

    async def write(self, work: Work[T]) -> T:
        """Run a unit in one transaction. Return when the change is durable.

        An accepted unit runs even if the waiting task is cancelled.
        """

    def write_blocking(self, work: Work[T]) -> T:
        """Run a unit as `write` does, and block the calling thread.

        The thread must not run an event loop.
        """

    async def clock(self) -> int:
        """Return the time of the clock that heartbeats use, in microseconds UTC."""

    def changes(self) -> int:
        """Return a number that changes after each write of this process to the database.

        It may change after the writes of other processes, too.
        """

    def watch(self, topic: str, notify: Callable[[], None] | None = None) -> Callable[[], int]:
        """Return a function whose number changes after the writes that concern a topic.

        It may change after other writes, too. Equal functions have the same numbers. Keep the
        function: once nobody refers to it, the topic is no longer watched, nor `notify` called.

        Args:
            topic: see `run_topic`, `worker_topic`, `LEGS_TOPIC` and `HALTS_TOPIC`.
            notify: called after each change of the number, if the database has notifications.
        """

    def announce(self, run_id: str) -> None:
        """Wake the followers of a run in other processes. Call it after a commit of its events."""

    def request_announcements(self, owner: str, run_ids: Iterable[str]) -> None:
        """Request announcements of some runs from their worker, for a minute.

        An announcement or a request may be lost: a follower must read again after some time.
        """

    def load(self) -> Load:
        """Return the load of this process. It costs nothing and does not fail, open or closed."""

    async def close(self) -> None:
        """Finish the accepted writes, then close every connection."""


def run_topic(run_id: str) -> str:
    """Return the topic of the stored events and of the status of a run."""
    return f"run {run_id}"


def worker_topic(worker_id: str) -> str:
    """Return the topic of the cancel requests for the runs of a worker, and of messages to them."""
    return f"worker {worker_id}"


@lru_cache(MAXIMUM_COMPILED)
def compile_for_sqlite(sql: Sql) -> str:
    """Return the statement for SQLite: without the row locks of its SELECT."""
    if sql == OVERWRITE_DELETED:
        return "PRAGMA secure_delete = ON"

    text = _JSON_MEMBER.sub(r"""(\1 -> ('$."' || \2 || '"'))""", sql)
    # The members of an object have texts as keys.
    text = _JSON_HAS.sub(
        r"EXISTS (SELECT 1 FROM json_each(\1, '$.' || \2) AS items"
        r" WHERE items.value = \3 AND items.type = 'text' AND typeof(items.key) <> 'text')",
        text,
    )

    text = _SHORT_WORDS.sub(r"\1", text)
    text = _LOCK.sub("", text)
    text = _UTF8.sub(r"CAST(\1 AS BLOB)", text)
    text = _CLOCK.sub(r"\1", text)

    for name in _TRANSACTIONS:
        text = text.replace(name, "0")
    return _EXCLUSIVE.sub("NULL", text)


@lru_cache(MAXIMUM_COMPILED)
def compile_for_postgres(sql: Sql) -> tuple[str, tuple[str, ...]]:
    """Compile a statement for asyncpg, with `$1`, `$2`, ... for its parameters.

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

    sql_text = _JSON_MEMBER.sub(r"(cast(\1 AS json) -> cast(\2 AS text))::text", sql)
    sql_text = _JSON_HAS.sub(
        r"coalesce((cast(\1 AS jsonb) -> \2) @> to_jsonb(cast(\3 AS text)), false)", sql_text
    )
    sql_text = _UTF8.sub(r"convert_to(\1, 'UTF8')", sql_text)
    sql_text = _SHORT_WORDS.sub(r"regexp_replace(\1, '(\\S{200})', '\\1 ', 'g')", sql_text)
    sql_text = _EXCLUSIVE.sub(r"pg_advisory_xact_lock(hashtextextended(\1, 0))", sql_text)
    sql_text = _CLOCK.sub("(extract(epoch FROM clock_timestamp()) * 1000000)::bigint", sql_text)

    for name, expression in _TRANSACTIONS.items():
        sql_text = sql_text.replace(name, expression)

    text = _TOKEN.sub(numbered, sql_text)
    return text, tuple(numbers)


OVERWRITE_DELETED = Sql("SELECT 'overwrite deleted rows'")
"""Lets SQLite overwrite deleted rows with zeros, which it does not do by itself."""

PROBE = Sql("SELECT count(*) FROM schema_version")
"""A read of one small table."""


def probe() -> Work[None]:
    """Read one small table, to see that the database answers."""
    return PROBE.execute()
