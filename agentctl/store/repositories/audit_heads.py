"""The signed heads of the audit log: each covers the entries since the one before it."""

from __future__ import annotations

from typing import NamedTuple

from agentctl.store.database import Sql, Statement, Steps, Work, build_insert, single_unit, unit
from agentctl.store.repositories.audit import AuditRow


class HeadRow(NamedTuple):
    """A stored head.

    Attributes:
        number: its number, from 1 without gaps.
        first_seq, last_seq: the numbers of the first and of the last entry that it covers.
        expired_seq: the number of the last entry that may have been deleted for its age; 0 for
            none.
    """

    number: int
    at: int
    first_seq: int
    last_seq: int
    entries: int
    expired_seq: int
    token: str


class Frontier(NamedTuple):
    """The end of the audit log at one moment.

    Attributes:
        last_seq: the number of the newest entry; 0 without entries.
        transactions: the number of the first transaction that begins later.
    """

    last_seq: int
    transactions: int


_COLUMNS = ", ".join(HeadRow._fields)

_FRONTIER = Sql("SELECT coalesce(max(seq), 0), next_transaction() FROM audit_log")

_OLDEST_TRANSACTION = Sql("SELECT oldest_transaction()")

_NEWEST = Sql(f"SELECT {_COLUMNS} FROM audit_heads ORDER BY number DESC LIMIT 1")

_UNSIGNED = Sql(
    f"SELECT {', '.join(AuditRow._fields)} FROM audit_log"
    " WHERE seq > :after AND seq <= :last ORDER BY seq LIMIT :limit"
)

_APPEND = Sql(
    f"{build_insert('audit_heads', HeadRow._fields)} ON CONFLICT (number) DO NOTHING"
    " RETURNING number"
)

_LAST_BEFORE = Sql(
    "SELECT last_seq FROM audit_heads WHERE at < :before ORDER BY number DESC LIMIT 1"
)

_AFTER = Sql(
    f"SELECT {_COLUMNS} FROM audit_heads WHERE number > :number ORDER BY number LIMIT :limit"
)

_PAGE = Sql(
    f"SELECT {_COLUMNS} FROM audit_heads WHERE number < :before ORDER BY number DESC LIMIT :limit"
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


def get_newest() -> Work[HeadRow | None]:
    """Return the newest head; None without heads."""
    return _NEWEST.first(HeadRow)


def list_entries(after: int, last: int, limit: int) -> Work[list[AuditRow]]:
    """Return entries with numbers above `after`, up to `last`, in the order of their numbers."""
    return _UNSIGNED.rows(AuditRow, after=after, last=last, limit=limit)


def append(head: HeadRow) -> Work[bool]:
    """Store a head. Return False if another process has stored one with this number."""
    return _APPEND.has_rows(**head._asdict())


@unit
def find_expired_seq(before: int) -> Steps[int]:
    """Return the last entry that heads signed before a time cover; 0 for none."""
    return (yield from _LAST_BEFORE.value(before=before)) or 0


def list_after(number: int, limit: int) -> Work[list[HeadRow]]:
    """Return the heads after one, oldest first."""
    return _AFTER.rows(HeadRow, number=number, limit=limit)


def list_page(before: int, limit: int) -> Work[list[HeadRow]]:
    """Return the heads before one, newest first."""
    return _PAGE.rows(HeadRow, before=before, limit=limit)
