"""The audit log: rows that are appended, read newest first, and deleted when they are old.

A read walks back from the newest row, with the index of a filter if one is given. Times need no
index: later rows have later times, unless a clock was set back.

Each signed head covers the entries since the head before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from agentctl.records.kinds import AuditOutcome
from agentctl.store.database import (
    Sql,
    Statement,
    Steps,
    Value,
    Work,
    build_insert,
    single_unit,
    unit,
)

if TYPE_CHECKING:
    from agentctl.interface.requests.administration import AuditFilter

DELETE_BATCH = 500
"""Maximum number of rows that one unit of `delete_older` reads: other writers wait for it."""

FIRST_WINDOW = 1_000
"""Rows in the first window of a read; each further window is twice as large.

The times of as many rows at the end of a window show if older rows may follow.
"""

MAXIMUM_WINDOW = 8_000
"""Rows in the last window of a read with `since`, which reads 15,000 rows then."""

MAXIMUM_READ = 400
"""Rows of one filter that a page compares with the other filters."""

EARLIEST = -(2**63)
"""A time before the times of all rows."""

LAST_NUMBER = 2**63 - 1
"""A number that no row exceeds."""


class AuditRow(NamedTuple):
    """An entry, with the fields of `AuditRecord`. `at` is in microseconds UTC.

    `seq` is 0 before the entry is stored; then it is larger than the numbers of earlier entries.
    """

    at: int
    principal: str | None
    via: str
    operation: str
    resource: str | None
    outcome: AuditOutcome
    status: int | None
    reason: str | None
    request_id: str | None
    trace_id: str | None = None
    count: int = 1  # type: ignore[assignment]
    seq: int = 0


@dataclass(frozen=True, slots=True)
class AuditRowPage:
    """A page."""

    rows: list[AuditRow]

    next: int | None
    """The argument `before` of the next page, None on the last page."""

    searched_until: int | None = None
    """The time of the last row that was compared, if the page ends there."""


# The database numbers the rows.
APPENDED_COLUMNS = AuditRow._fields[:-1]
"""The columns of a new row."""

_APPEND = build_insert("audit_log", APPENDED_COLUMNS)

_BOUNDS = Sql("SELECT (SELECT min(seq) FROM audit_log), (SELECT max(seq) FROM audit_log)")

_FILTERS = ("principal", "operation", "outcome")
"""The columns with an index, the most selective first."""


def _build_window(condition: str) -> Sql:
    return Sql(
        f"SELECT {', '.join(AuditRow._fields)} FROM audit_log"
        f" WHERE seq >= :floor AND seq < :before AND {condition} ORDER BY seq DESC LIMIT :limit"
    )


_WINDOWS = {name: _build_window(f"{name} = :{name}") for name in _FILTERS}
_SINCE = _build_window("at >= :since")

_TIMES = Sql(
    "SELECT max(at), min(at) FROM (SELECT at FROM audit_log WHERE seq >= :floor AND seq < :before"
    " ORDER BY seq LIMIT :rows) AS last"
)

_NEWEST_TIME = Sql("SELECT at FROM audit_log WHERE seq = (SELECT max(seq) FROM audit_log)")

_OLDEST = f"SELECT seq, at FROM audit_log ORDER BY seq LIMIT {DELETE_BATCH}"

_ANY_OLDER = Sql(f"SELECT seq FROM ({_OLDEST}) AS oldest WHERE at < :before LIMIT 1")

_DELETE_OLDER = Sql(
    f"DELETE FROM audit_log WHERE seq IN (SELECT seq FROM ({_OLDEST}) AS oldest"
    " WHERE at < :before AND seq <= :last) RETURNING seq"
)


def append_entry(entry: AuditRow) -> Work[None]:
    """Append an entry."""
    values = entry._asdict()
    del values["seq"]
    return _APPEND.execute(**values)


@unit
def list_page(filter: AuditFilter, before: int | None = None) -> Steps[AuditRowPage]:
    """Read a page, newest rows first.

    The index of one filter finds rows, which are compared with the other filters. The page ends
    early after `MAXIMUM_READ` of these rows, and with `since` after `MAXIMUM_WINDOW`. A row may be
    older than rows with smaller numbers, because a clock was set back. So the read stops at `since`
    only if the last `FIRST_WINDOW` rows of a window are all older.

    Args:
        before: only rows with a smaller number.
    """
    ((lowest, highest),) = yield Statement(_BOUNDS)
    if lowest is None:
        return AuditRowPage([], None)

    if before is None or before > highest:
        before = highest + 1

    filters = dict[str, Value]()
    for name in _FILTERS:
        value = getattr(filter, name)
        if value is not None:
            filters[name] = value

    # The first filter has the most selective index.
    sql = _SINCE
    if filters:
        sql = _WINDOWS[next(iter(filters))]

    filter_count = len(filters)
    since = EARLIEST
    if filter.since is not None:
        filter_count += 1
        since = filter.since
    is_compared = filter_count > 1
    rows_left = MAXIMUM_READ if is_compared else filter.limit + 1

    rows: list[AuditRow] = []
    size = FIRST_WINDOW
    while before > lowest and len(rows) <= filter.limit:
        window = {"floor": max(before - size, lowest), "before": before}
        values = {**window, **filters, "since": since, "limit": rows_left}
        read_rows = [AuditRow(*row) for row in (yield Statement(sql, values))]
        for row in read_rows:
            matches = all(getattr(row, name) == value for name, value in filters.items())
            if matches and row.at >= since:
                rows.append(row)

        rows_left -= len(read_rows)
        before = window["floor"]
        size = 2 * size

        if len(rows) > filter.limit:
            break

        if is_compared and not rows_left:
            return AuditRowPage(rows, read_rows[-1].seq, read_rows[-1].at)

        if filter.since is not None:
            ((newest, oldest),) = yield Statement(_TIMES, {**window, "rows": FIRST_WINDOW})
            if newest is not None and newest < since:
                break
            if size > MAXIMUM_WINDOW and before > lowest:
                return AuditRowPage(rows, before, oldest or since)

    page_rows = rows[: filter.limit]
    next_before: int | None = None
    if len(rows) > filter.limit:
        next_before = page_rows[-1].seq
    return AuditRowPage(page_rows, next_before)


def get_newest_time() -> Work[int | None]:
    """Return the time of the newest row; None without rows."""
    return _NEWEST_TIME.value()


def has_older(before: int) -> Work[bool]:
    """Return True if `delete_older` has rows to delete."""
    return _ANY_OLDER.has_rows(before=before)


def delete_older(before: int, last: int = LAST_NUMBER) -> Work[int]:
    """Delete a batch of the rows before a time. Call it again until it returns 0."""
    return _DELETE_OLDER.count_rows(before=before, last=last)


class HeadRow(NamedTuple):
    """A stored head."""

    number: int
    """Its number, from 1 without gaps."""

    at: int

    first_seq: int
    """The number of the first entry that it covers."""

    last_seq: int
    """The number of the last entry that it covers."""

    entries: int

    expired_seq: int
    """The number of the last entry that may have been deleted because of its age; 0 if none may."""

    token: str


class Frontier(NamedTuple):
    """The end of the audit log at one moment."""

    last_seq: int
    """The number of the newest entry; 0 without entries."""

    transactions: int
    """The number of the first transaction that begins later."""


_HEAD_COLUMNS = ", ".join(HeadRow._fields)

_FRONTIER = Sql("SELECT coalesce(max(seq), 0), next_transaction() FROM audit_log")

_OLDEST_TRANSACTION = Sql("SELECT oldest_transaction()")

_NEWEST_HEAD = Sql(f"SELECT {_HEAD_COLUMNS} FROM audit_heads ORDER BY number DESC LIMIT 1")

_UNSIGNED = Sql(
    f"SELECT {', '.join(AuditRow._fields)} FROM audit_log"
    " WHERE seq > :after AND seq <= :last ORDER BY seq LIMIT :limit"
)

_APPEND_HEAD = Sql(
    f"{build_insert('audit_heads', HeadRow._fields)} ON CONFLICT (number) DO NOTHING"
    " RETURNING number"
)

_LAST_SIGNED_BEFORE = Sql(
    "SELECT last_seq FROM audit_heads WHERE at < :before ORDER BY number DESC LIMIT 1"
)

_HEADS_AFTER = Sql(
    f"SELECT {_HEAD_COLUMNS} FROM audit_heads WHERE number > :number ORDER BY number LIMIT :limit"
)

_HEADS = Sql(
    f"SELECT {_HEAD_COLUMNS} FROM audit_heads WHERE number < :before"
    " ORDER BY number DESC LIMIT :limit"
)


def get_frontier() -> Work[Frontier | None]:
    """Return the present end of the audit log."""
    return _FRONTIER.first(Frontier)


@single_unit
def is_settled(frontier: Frontier) -> Steps[bool]:
    """Return True if no entry up to an earlier end of the audit log can appear any more.

    A transaction gets the number of its entry before its commit. All transactions that were open
    at that moment have to end first.
    """
    rows = yield Statement(_OLDEST_TRANSACTION)
    return bool(rows[0][0] >= frontier.transactions)


def get_newest_head() -> Work[HeadRow | None]:
    """Return the newest head; None without heads."""
    return _NEWEST_HEAD.first(HeadRow)


def list_entries(after: int, last: int, limit: int) -> Work[list[AuditRow]]:
    """Return entries with numbers above `after`, up to `last`, in the order of their numbers."""
    return _UNSIGNED.rows(AuditRow, after=after, last=last, limit=limit)


def append_head(head: HeadRow) -> Work[bool]:
    """Store a head. Return False if another process has stored one with this number."""
    return _APPEND_HEAD.has_rows(**head._asdict())


@unit
def find_expired_seq(before: int) -> Steps[int]:
    """Return the last entry that heads signed before a time cover; 0 for none."""
    return (yield from _LAST_SIGNED_BEFORE.value(before=before)) or 0


def list_heads_after(number: int, limit: int) -> Work[list[HeadRow]]:
    """Return the heads after one, oldest first."""
    return _HEADS_AFTER.rows(HeadRow, number=number, limit=limit)


def list_heads(before: int, limit: int) -> Work[list[HeadRow]]:
    """Return the heads before one, newest first."""
    return _HEADS.rows(HeadRow, before=before, limit=limit)
