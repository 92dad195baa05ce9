"""Halts, in the system database: one row each, ended ones included.

Each change of a halt gets the next `change_number`. The greatest one names the state of all halts:
a process that has read the halts of a number, and tells the database so in the row of its worker,
obeys every halt with this number or a smaller one (decision 146).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import NamedTuple

from agentctl.interface.requests.halts import HaltFilter
from agentctl.records.halts import HaltScope
from agentctl.store.database import Sql, Statement, Steps, Work, build_insert, single_unit, unit
from agentctl.store.listing import Conditions, Listing, RowPage, Slice


@dataclass(frozen=True, slots=True)
class HaltRow:
    """A halt. Times are microseconds UTC."""

    halt_id: str
    scope: HaltScope

    scope_id: str | None
    """The id of the component or model, the name of the tool, or the user; None for `all`."""

    reason: str

    stop_running: int
    """1 if the runs in its scope were cancelled when it was created."""

    created_by: str | None
    created_at: int

    until: int | None
    """The time at which it ends by itself; None if someone has to end it."""

    ended_at: int | None = None
    ended_by: str | None = None

    change_number: int = 0
    """The number of its last change; set when it is stored."""

    def is_active_at(self, moment: int) -> bool:
        """Return True if the halt has not ended, and its time has not come."""
        return self.ended_at is None and (self.until is None or moment < self.until)


class ActiveHalts(NamedTuple):
    """The halts that have not ended, and the number of the last change of any halt."""

    change_number: int
    halts: Sequence[HaltRow]


_NAMES = tuple(field.name for field in fields(HaltRow))
_COLUMNS = ", ".join(_NAMES)

CHANGE_NUMBER = "(SELECT coalesce(max(change_number), 0) FROM halts)"
"""The number of the last change of any halt, 0 before the first one; for other statements."""

# Numbers are given one after the other. Without this lock a halt could be committed after a later
# one: a process that has read the later number would count as one that obeys both.
_LOCK = Sql("SELECT exclusive(:name)")

_NEXT = Sql(f"SELECT {CHANGE_NUMBER} + 1")

_CREATE = build_insert("halts", _NAMES)

_GET = Sql(f"SELECT {_COLUMNS} FROM halts WHERE halt_id = :halt_id")

_END = Sql(
    "UPDATE halts SET ended_at = :ended_at, ended_by = :ended_by, change_number = :change_number"
    f" WHERE halt_id = :halt_id AND ended_at IS NULL RETURNING {_COLUMNS}"
)

# One statement, so the number and the rows are those of one moment. The row of the number is there
# without a halt, too.
_ACTIVE = Sql(
    f"SELECT numbers.change_number AS last_number, {', '.join(f'halts.{name}' for name in _NAMES)}"
    f" FROM (SELECT {CHANGE_NUMBER} AS change_number) AS numbers"
    " LEFT JOIN halts ON halts.ended_at IS NULL"
    " ORDER BY halts.created_at, halts.halt_id"
)

_DUE = Sql(
    "SELECT halt_id FROM halts WHERE ended_at IS NULL AND until <= :now"
    " ORDER BY created_at, halt_id LIMIT 100"
)

_ENDED_SINCE = Sql(f"SELECT {_COLUMNS} FROM halts WHERE ended_at >= :since ORDER BY ended_at")

_CONFIRM = Sql(
    "UPDATE workers SET halts_seen = :change_number"
    " WHERE worker_id = :worker_id AND halts_seen < :change_number RETURNING worker_id"
)

_UNCONFIRMED = Sql("SELECT worker_id FROM workers WHERE halts_seen < :change_number")

LISTING = Listing(table="halts", columns=_COLUMNS, id="halt_id")


def lock() -> Work[None]:
    """Let no other transaction change halts until the end of this one."""
    return _LOCK.execute(name="halts")


@unit
def create(row: HaltRow) -> Steps[HaltRow]:
    """Store a new halt; return it with its change number."""
    yield from lock()
    ((number,),) = yield Statement(_NEXT)
    stored_row = replace(row, change_number=number)
    yield Statement(_CREATE, asdict(stored_row))
    return stored_row


@unit
def end(halt_id: str, ended_by: str, at: int) -> Steps[HaltRow | None]:
    """End a halt; return it, or None if it does not exist or has ended before."""
    yield from lock()
    ((number,),) = yield Statement(_NEXT)
    values = {"halt_id": halt_id, "ended_by": ended_by, "ended_at": at, "change_number": number}
    rows = yield Statement(_END, values)
    return HaltRow(*rows[0]) if rows else None


def get(halt_id: str) -> Work[HaltRow | None]:
    """Return a halt, ended or not."""
    return _GET.first(HaltRow, halt_id=halt_id)


@single_unit
def list_active() -> Steps[ActiveHalts]:
    """Return the halts that have not ended, oldest first, with the number of the last change."""
    rows = yield Statement(_ACTIVE)
    halts = [HaltRow(*columns) for _, *columns in rows if columns[0] is not None]
    return ActiveHalts(rows[0][0], halts)


def list_due(now: int) -> Work[list[str]]:
    """Return at most 100 halts whose time has come and that have not ended."""
    return _DUE.column(now=now)


def list_ended_since(since: int) -> Work[list[HaltRow]]:
    """Return the halts that have ended since a time."""
    return _ENDED_SINCE.rows(HaltRow, since=since)


def list_page(filter: HaltFilter, page: Slice) -> Work[RowPage[HaltRow]]:
    """Read a page of the halts that match a filter, and their total.

    Args:
        page: the page, in the order of `created_at`; its `sort` is not read.
    """
    conditions = Conditions().with_equal(scope=filter.scope, scope_id=filter.scope_id)
    if filter.state == "active":
        conditions = conditions.with_condition("ended_at IS NULL")
    elif filter.state is not None:
        conditions = conditions.with_condition("ended_at IS NOT NULL")
    return LISTING.list_page(conditions, replace(page, sort="created_at"), HaltRow)


def confirm(worker_id: str, change_number: int) -> Work[bool]:
    """Store that the process of a worker obeys the halts of a change number.

    Return False if a later number is stored, or the worker has no row.
    """
    confirmed = _CONFIRM.has_rows(worker_id=worker_id, change_number=change_number)
    return confirmed.as_repeatable()


def list_unconfirmed(change_number: int) -> Work[list[str]]:
    """Return the workers that may not obey the halts of a change number yet."""
    return _UNCONFIRMED.column(change_number=change_number)
