"""Usage: rows of ended runs, and the sums by hour and day that they are added to.

The transaction that ends a run appends one row, which no other transaction waits for. The process
that sweeps takes these rows and adds them to the sums, in one transaction, so that a read of both
tables counts each run once (decision 104).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import orjson

from agentctl.records.times import DAY, HOUR, find_bucket, parse_rfc3339
from agentctl.records.usage import Step
from agentctl.store.database import OVERWRITE_DELETED, Row, Sql, Statement, Steps, Value, Work, unit
from agentctl.store.repositories.sessions import parse_counters

PERIODS: Mapping[Step, int] = {"hour": HOUR, "day": DAY}
"""Microseconds of the periods."""

FOLD_ROWS = 500
"""Ended runs that one transaction adds to the sums."""

LARGEST = 2**62
"""The largest stored number: a sum of wrong reports must not stop other sums."""

TABLES: Mapping[Step, str] = {"hour": "usage_hourly", "day": "usage_daily"}

NANODOLLARS = 1_000_000_000
"""Units of the sums of a cost in a US dollar."""

CostOf = Callable[[str, Mapping[str, int]], int | None]
"""Returns the cost of the tokens of a model in billionths of a US dollar.

None if its price is unknown. It may raise `UnknownPrice`, which the units that call it pass on.
"""


class EndedRunUsage(NamedTuple):
    """A row of `usage_ends`."""

    is_root: int
    user_id: str | None
    component_type: str
    component_id: str
    status: str
    error_code: str | None
    created_at: int
    finished_at: int
    first_token_at: int | None
    model: str | None
    model_calls: int
    metrics: str | None
    model_metrics: str | None
    version: str | None


OF_VERSIONS = 2
"""The `everyone` of sums by version, which have the version in place of the user (migration 30)."""


class SumKey(NamedTuple):
    """The key of sums. A text is empty if the sums have no such part."""

    everyone: int
    user_id: str
    start: int
    component_type: str
    component_id: str
    model: str

    @property
    def version(self) -> str:
        """The version of sums by version."""
        return self.user_id if self.everyone == OF_VERSIONS else ""

    def of_version(self, version: str) -> SumKey:
        """Return the key of the sums of a version that include the sums of this key."""
        return self._replace(everyone=OF_VERSIONS, user_id=version)


@dataclass(slots=True)
class Sums:
    """The sums of some runs; the columns of the tables after their key."""

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    member_runs: int = 0
    unreported_runs: int = 0
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    unpriced_tokens: int = 0
    cost: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    first_token: dict[str, int] = field(default_factory=dict)
    duration: dict[str, int] = field(default_factory=dict)

    def add(self, other: Sums) -> None:
        """Add other sums."""
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in COUNTS:
            counts = getattr(self, name)
            added = getattr(other, name)
            for key, count in added.items():
                counts[key] = counts.get(key, 0) + count

    def values(self) -> list[Value]:
        """Return the values of the columns."""
        counts = (orjson.dumps(getattr(self, name)).decode() for name in COUNTS)
        return [*(min(getattr(self, name), LARGEST) for name in COUNTERS), *counts]


COUNTS = ("failures", "first_token", "duration")
"""The columns of `Sums` that are JSON objects."""

COUNTERS = tuple(column.name for column in fields(Sums) if column.name not in COUNTS)
"""The columns of `Sums` that are numbers."""

_TOKENS = tuple(name for name in COUNTERS if name.endswith("_tokens") and name != "unpriced_tokens")

_ENDED = ", ".join(EndedRunUsage._fields)

APPENDED = (
    "CASE WHEN parent_run_id IS NULL THEN 1 ELSE 0 END, user_id, component_type, component_id,"
    " status, error_code, created_at, finished_at, cast(:first_token_at as bigint), model,"
    " cast(:model_calls as bigint), metrics, model_metrics, version"
)
"""The columns of `EndedRunUsage`, of a run that has ended."""

APPEND = f"INSERT INTO usage_ends ({_ENDED}) SELECT {APPENDED}"
"""The beginning of the statement that appends the row of an ended run."""

_APPEND = Sql(f"{APPEND} FROM runs WHERE run_id = :run_id")

_LOCK = Sql("SELECT exclusive(:name)")

_TAKE = Sql(
    "DELETE FROM usage_ends WHERE seq IN (SELECT seq FROM usage_ends ORDER BY seq LIMIT :limit)"
    f" RETURNING {_ENDED}"
)

_HAS_WAITING = Sql("SELECT 1 FROM usage_ends LIMIT 1")

_IS_UNCOUNTED = "counted = 0 AND finished_at IS NOT NULL"
"""The condition of ended runs that no row counts. A partial index has the same one."""

_HAS_UNCOUNTED = Sql(f"SELECT 1 FROM runs WHERE {_IS_UNCOUNTED} LIMIT 1")

_UNCOUNTED = Sql(
    f"SELECT run_id, spans FROM runs WHERE {_IS_UNCOUNTED} ORDER BY finished_at LIMIT 200"
)

_COUNT = Sql(
    "UPDATE runs SET counted = 1, model = :model"
    f" WHERE run_id = :run_id AND {_IS_UNCOUNTED} RETURNING run_id"
)

_HOURS = "FROM usage_hourly WHERE start < :before"

_HAS_OLDER = Sql(f"SELECT 1 {_HOURS} LIMIT 1")

_DELETE_OLDER = Sql(
    f"DELETE FROM usage_hourly WHERE start = (SELECT min(start) {_HOURS}) RETURNING start"
)

_GROUP = 20
"""Sums that one statement reads or writes."""

STORED: tuple[str, ...] = (*SumKey._fields, *(column.name for column in fields(Sums)))
"""The columns of the tables of sums, for `build_stored`."""


def _build_find(step: Step) -> Sql:
    types = {"everyone": "bigint", "start": "bigint"}
    rows = list[str]()
    for number in range(_GROUP):
        columns = (
            f"cast(:{name}_{number} as {types.get(name, 'text')})" for name in SumKey._fields
        )
        rows.append(f"({', '.join(columns)})")

    return Sql(
        f"SELECT {', '.join(STORED)} FROM {TABLES[step]}"
        f" WHERE ({', '.join(SumKey._fields)}) IN (VALUES {', '.join(rows)})"
    )


def _build_store(step: Step, count: int) -> Sql:
    rows = ", ".join(
        f"({', '.join(f':{name}_{number}' for name in STORED)})" for number in range(count)
    )
    changed = ", ".join(f"{name} = excluded.{name}" for name in STORED[len(SumKey._fields) :])
    return Sql(
        f"INSERT INTO {TABLES[step]} ({', '.join(STORED)}) VALUES {rows}"
        f" ON CONFLICT ({', '.join(SumKey._fields)}) DO UPDATE SET {changed}"
    )


_FIND = {step: _build_find(step) for step in PERIODS}

_ANONYMISE_ENDS = Sql(
    "UPDATE usage_ends SET user_id = NULL WHERE seq IN (SELECT seq FROM usage_ends"
    f" WHERE user_id = :user_id LIMIT {FOLD_ROWS}) RETURNING seq"
)


def _build_take(step: Step) -> Sql:
    key = ", ".join(SumKey._fields)
    return Sql(
        f"DELETE FROM {TABLES[step]} WHERE ({key}) IN (SELECT {key} FROM {TABLES[step]}"
        f" WHERE everyone = 0 AND user_id = :user_id LIMIT {FOLD_ROWS})"
        f" RETURNING {', '.join(STORED)}"
    )


_TAKE_OF_USER = {step: _build_take(step) for step in PERIODS}

# A group has one of two sizes, so that the database prepares each statement once.
_STORE = {(step, size): _build_store(step, size) for step in PERIODS for size in (1, _GROUP)}


def append(run_id: str, first_token_at: int | None = None, model_calls: int = 0) -> Work[None]:
    """Append the row of a run, in the transaction that ends it; arguments as in `RunEnd`."""
    return _APPEND.execute(run_id=run_id, first_token_at=first_token_at, model_calls=model_calls)


class UnknownPrice(Exception):
    """Raised by a `CostOf` for a model whose price was not looked up yet. Nothing was changed."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


@unit
def fold(cost_of: CostOf) -> Steps[int]:
    """Add waiting rows to the sums. Return their number, at most `FOLD_ROWS`."""
    # One transaction at a time reads and replaces sums.
    yield Statement(_LOCK, {"name": "usage"})
    ended_runs = [EndedRunUsage(*row) for row in (yield Statement(_TAKE, {"limit": FOLD_ROWS}))]

    hours: dict[SumKey, Sums] = {}
    for run in ended_runs:
        for key, sums in split_by_model(run, "hour", cost_of):
            keys = [key, key._replace(everyone=1, user_id="")]
            if run.version is not None:
                keys.append(key.of_version(run.version))
            for sum_key in keys:
                hours.setdefault(sum_key, Sums()).add(sums)

    days: dict[SumKey, Sums] = {}
    for key, sums in hours.items():
        days.setdefault(key._replace(start=key.start - key.start % DAY), Sums()).add(sums)

    yield from _add("hour", hours)
    yield from _add("day", days)
    return len(ended_runs)


@unit
def anonymise(user_id: str) -> Steps[dict[str, int]]:
    """Move some sums of a user to the sums of runs without a user.

    So the sums of all users stay equal to the sums of everyone. Call it again until it moves none.

    Returns:
        The number of moved rows by table.
    """
    yield Statement(OVERWRITE_DELETED)
    yield Statement(_LOCK, {"name": "usage"})
    changed_rows = yield Statement(_ANONYMISE_ENDS, {"user_id": user_id})
    moved_counts = {"usage_ends": len(changed_rows)}

    for step, table in TABLES.items():
        sums_without_user: dict[SumKey, Sums] = {}
        taken_rows = yield Statement(_TAKE_OF_USER[step], {"user_id": user_id})
        for key, sums in map(build_stored, taken_rows):
            sums_without_user.setdefault(key._replace(user_id=""), Sums()).add(sums)
        yield from _add(step, sums_without_user)
        moved_counts[table] = len(taken_rows)
    return moved_counts


def has_waiting() -> Work[bool]:
    """Return True if `fold` has rows to add."""
    return _HAS_WAITING.has_rows()


def has_uncounted() -> Work[bool]:
    """Return True if `count_earlier` has runs to count."""
    return _HAS_UNCOUNTED.has_rows()


@unit
def count_earlier() -> Steps[None]:
    """Append the rows of some ended runs that an earlier version has ended without one.

    Their tokens count for the model that they called first.
    """
    for run_id, spans_text in (yield Statement(_UNCOUNTED)):
        spans = orjson.loads(spans_text) if spans_text else []
        calls = [span for span in spans if span["kind"] == "model"]
        model = calls[0]["name"] if calls else None

        if (yield Statement(_COUNT, {"run_id": run_id, "model": model})):
            first_tokens = [call["first_token_at"] for call in calls if call["first_token_at"]]
            first = parse_rfc3339(min(first_tokens)) if first_tokens else None
            yield from append(run_id, first, len(calls))


def has_older_hours(before: int) -> Work[bool]:
    """Return True if `delete_older_hours` has sums to delete."""
    return _HAS_OLDER.has_rows(before=before)


def delete_older_hours(before: int) -> Work[int]:
    """Delete the sums of the oldest hour before a time. Call it again until it returns 0."""
    return _DELETE_OLDER.count_rows(before=before)


def split_by_model(
    run: EndedRunUsage, step: Step, cost_of: CostOf
) -> Iterator[tuple[SumKey, Sums]]:
    """Yield the sums of one run for each of its models; the first sums count the run itself."""
    start = run.finished_at - run.finished_at % PERIODS[step]
    run_key = SumKey(0, run.user_id or "", start, run.component_type, run.component_id, "")
    per_model = orjson.loads(run.model_metrics) if run.model_metrics else {}
    # Without counters of each model, all tokens count for the model that was called first.
    models = list(per_model.items()) or [(run.model or "", None)]

    for number, (model, model_counters) in enumerate(models):
        if model_counters is None:
            counters = parse_counters(run.metrics)
        else:
            counters = {name: model_counters.get(name) or 0 for name in _TOKENS}

        sums = _count_run(run) if number == 0 else Sums()
        for name in _TOKENS:
            setattr(sums, name, counters[name])

        cost = cost_of(model, counters) if sums.total_tokens else 0
        sums.unpriced_tokens = sums.total_tokens if cost is None else 0
        sums.cost = cost or 0

        yield run_key._replace(model=model), sums


def _count_run(run: EndedRunUsage) -> Sums:
    sums = Sums(model_calls=run.model_calls)
    # A run that never began has no counters, and has used nothing.
    sums.unreported_runs = int(
        run.metrics is not None and orjson.loads(run.metrics).get("total_tokens") is None
    )

    if not run.is_root:
        sums.member_runs = 1
        return sums

    sums.completed = int(run.status == "COMPLETED")
    sums.failed = int(run.status == "ERROR")
    sums.cancelled = int(run.status == "CANCELLED")
    if run.status == "ERROR":
        sums.failures[run.error_code or ""] = 1
    sums.duration[find_bucket(run.finished_at - run.created_at)] = 1
    if run.first_token_at is not None:
        sums.first_token[find_bucket(run.first_token_at - run.created_at)] = 1
    return sums


@unit
def _add(step: Step, added: Mapping[SumKey, Sums]) -> Steps[None]:
    """Add sums to the stored sums."""
    keys = sorted(added)
    for first in range(0, len(keys), _GROUP):
        group = keys[first : first + _GROUP]
        values: dict[str, Value] = {
            f"{name}_{number}": None for name in SumKey._fields for number in range(_GROUP)
        }

        for number, key in enumerate(group):
            values |= {f"{name}_{number}": value for name, value in key._asdict().items()}

        for key, stored_sums in map(build_stored, (yield Statement(_FIND[step], values))):
            added[key].add(stored_sums)

        yield from _store(step, [(key, added[key]) for key in group])


@unit
def _store(step: Step, sums: Sequence[tuple[SumKey, Sums]]) -> Steps[None]:
    # A statement stores one row or a whole group: the database prepares only these two texts.
    size = _GROUP if len(sums) == _GROUP else 1
    for first in range(0, len(sums), size):
        values: dict[str, Value] = {}
        for number, (key, stored_sums) in enumerate(sums[first : first + size]):
            row = zip(STORED, (*key, *stored_sums.values()), strict=True)
            values |= {f"{name}_{number}": value for name, value in row}
        yield Statement(_STORE[step, size], values)


def build_stored(row: Row) -> tuple[SumKey, Sums]:
    """Build the sums of a row with the columns `STORED`."""
    size = len(SumKey._fields)
    numbers = row[size : size + len(COUNTERS)]
    counts = row[size + len(COUNTERS) :]
    return SumKey(*row[:size]), Sums(*numbers, *map(orjson.loads, counts))
