"""The audit: rows that are appended, read newest first, and removed when they are old.

They are read by walking back from the newest row, by the index of one filter where one is given;
times need no index, because later rows have later ones but for a clock that was set back.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from agentctl.store.database import Row, Sql, Statement, Steps, Value, unit

__all__ = [
    "AuditQuery",
    "AuditRow",
    "AuditRowPage",
    "NewAuditEntry",
    "append_entry",
    "delete_older",
    "has_older",
    "list_page",
]

DELETE_BATCH = 500
"""Rows that one unit of `delete_older` looks at: other writers wait meanwhile."""

FIRST_WINDOW = 1_000
"""Rows that the walk looks at first; each further look is at twice as many."""

EARLIEST = -(2**63)
"""Before every time."""


class NewAuditEntry(NamedTuple):
    """What is appended. `at` is in microseconds; the rest is as `records.audit` has it."""

    at: int
    principal: str | None
    via: str
    operation: str
    resource: str | None
    outcome: str
    status: int | None
    reason: str | None
    request_id: str | None


class AuditRow(NamedTuple):
    """An entry that is there, with its number: later rows have larger ones."""

    at: int
    principal: str | None
    via: str
    operation: str
    resource: str | None
    outcome: str
    status: int | None
    reason: str | None
    request_id: str | None
    seq: int


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which rows to read, newest first. None: whatever.

    Attributes:
        since: from this time on, microseconds.
        before: only rows with a smaller number.
    """

    limit: int
    principal: str | None = None
    operation: str | None = None
    outcome: str | None = None
    since: int | None = None
    before: int | None = None


@dataclass(frozen=True, slots=True)
class AuditRowPage:
    """A page. `next` is the `before` of the next one, None on the last."""

    rows: list[AuditRow]
    next: int | None


_NAMES = NewAuditEntry._fields

_APPEND = Sql(
    f"INSERT INTO audit_log ({', '.join(_NAMES)})"
    f" VALUES ({', '.join(f':{name}' for name in _NAMES)})"
)

_BOUNDS = Sql("SELECT (SELECT min(seq) FROM audit_log), (SELECT max(seq) FROM audit_log)")

_FILTERS = ("principal", "operation", "outcome")
"""The more selective ones first; each leads an index."""


def _build_window(present: tuple[str, ...]) -> Sql:
    """A look by the index of the first filter; the others are kept from choosing theirs."""
    lead = [f" AND {name} = :{name}" for name in present[:1]]
    others = [f" AND coalesce({name}, '') = :{name}" for name in present[1:]]
    return Sql(
        f"SELECT {', '.join(AuditRow._fields)} FROM audit_log"
        f" WHERE seq >= :floor AND seq < :before{''.join([*lead, *others])} AND at >= :since"
        " ORDER BY seq DESC LIMIT :limit"
    )


_WINDOWS = {
    names: _build_window(names) for count in range(4) for names in combinations(_FILTERS, count)
}

_NEWEST = Sql("SELECT max(at) FROM audit_log WHERE seq >= :floor AND seq < :before")

_OLDEST = f"SELECT seq, at FROM audit_log ORDER BY seq LIMIT {DELETE_BATCH}"

_ANY_OLDER = Sql(f"SELECT seq FROM ({_OLDEST}) AS oldest WHERE at < :before LIMIT 1")

_DELETE_OLDER = Sql(
    f"DELETE FROM audit_log WHERE seq IN (SELECT seq FROM ({_OLDEST}) AS oldest"
    " WHERE at < :before) RETURNING seq"
)


@unit
def append_entry(entry: NewAuditEntry) -> Steps[None]:
    """Add a row."""
    yield Statement(_APPEND, entry._asdict())


@unit
def list_page(query: AuditQuery) -> Steps[AuditRowPage]:
    """Read a page. It may walk over the whole audit: for `large` reads.

    Clocks are set back now and then, so that a row may be older than those before it. The walk
    ends at `since` only where all rows of a look are older.
    """
    ((lowest, highest),) = yield Statement(_BOUNDS)
    if lowest is None:
        return AuditRowPage([], None)
    before = highest + 1 if query.before is None else min(query.before, highest + 1)
    rows: list[Row] = []
    size = FIRST_WINDOW
    present = tuple(name for name in _FILTERS if getattr(query, name) is not None)
    while before > lowest and len(rows) <= query.limit:
        floor = max(before - size, lowest)
        rows += yield Statement(
            _WINDOWS[present], _window_parameters(query, present, floor, before, len(rows))
        )
        if query.since is not None and (yield from _is_window_older(query.since, floor, before)):
            break
        before, size = floor, 2 * size
    shown = [AuditRow(*row) for row in rows[: query.limit]]
    return AuditRowPage(shown, shown[-1].seq if len(rows) > query.limit else None)


def _window_parameters(
    query: AuditQuery, present: tuple[str, ...], floor: int, before: int, found: int
) -> dict[str, Value]:
    """Those of a look; one row more than the page is read, to know whether there is another."""
    return {
        "floor": floor,
        "before": before,
        "since": EARLIEST if query.since is None else query.since,
        "limit": query.limit + 1 - found,
        **{name: getattr(query, name) for name in present},
    }


@unit
def _is_window_older(since: int, floor: int, before: int) -> Steps[bool]:
    ((newest,),) = yield Statement(_NEWEST, {"floor": floor, "before": before})
    return newest is not None and newest < since


@unit
def has_older(before: int) -> Steps[bool]:
    """Whether `delete_older` has anything to remove."""
    return bool((yield Statement(_ANY_OLDER, {"before": before})))


@unit
def delete_older(before: int) -> Steps[int]:
    """Remove rows from before a time, some at once; repeat until it returns 0."""
    return len((yield Statement(_DELETE_OLDER, {"before": before})))
