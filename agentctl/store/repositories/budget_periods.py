"""The present periods of budgets, in the system database: limits of people, and warnings.

A row is written when a person has decided about a budget, or its warning is due. Each write is
safe to repeat: a limit is never lowered, and of several warnings the first one counts.
"""

from __future__ import annotations

from typing import NamedTuple

from agentctl.store.database import Sql, Statement, Steps, Work, unit

KEEP = 40 * 86_400 * 1_000_000
"""Microseconds from the begin of a period after which its rows are deleted: a month is over."""


class PeriodKey(NamedTuple):
    """One period of a budget of one user, one component or the server."""

    budget_id: str

    subject: str
    """A hash of the user or the component; "" for the server."""

    since: int
    """The begin of the period, microseconds UTC."""


class PeriodRow(NamedTuple):
    """The facts about a period. Limits are tokens, or billionths of a US dollar."""

    raised_to: int | None = None
    """The limit that a person has approved; None without a decision."""

    refused_at: int | None = None
    """The limit beyond which a person has refused to continue; None without a refusal."""

    warned_at: int | None = None
    """The time of the warning, microseconds UTC; None before it."""


_KEY = "budget_id = :budget_id AND subject = :subject AND since = :since"

_GET = Sql(f"SELECT raised_to, refused_at, warned_at FROM budget_periods WHERE {_KEY}")

_LIST = Sql(
    "SELECT subject, raised_to FROM budget_periods"
    " WHERE budget_id = :budget_id AND since = :since AND raised_to IS NOT NULL"
)

_INSERT = "INSERT INTO budget_periods (budget_id, subject, since, {name})"
_INSERT += " VALUES (:budget_id, :subject, :since, :value)"
_INSERT += " ON CONFLICT (budget_id, subject, since) DO UPDATE SET {name} = excluded.{name}"

_RAISE = Sql(
    _INSERT.format(name="raised_to")
    + " WHERE coalesce(budget_periods.raised_to, 0) < excluded.raised_to"
)

_REFUSE = Sql(_INSERT.format(name="refused_at"))

_WARN = Sql(
    _INSERT.format(name="warned_at")
    + " WHERE budget_periods.warned_at IS NULL RETURNING budget_periods.budget_id"
)

_FORGET = Sql("DELETE FROM budget_periods WHERE since < :before")


def get(key: PeriodKey) -> Work[PeriodRow | None]:
    """Return what is known of a period; None for nothing."""
    return _GET.first(PeriodRow, **key._asdict())


def list_raised(budget_id: str, since: int) -> Work[list[tuple[str, int]]]:
    """Return the raised limits of a budget in a period, each with its subject."""
    return _LIST.rows(lambda subject, limit: (subject, limit), budget_id=budget_id, since=since)


@unit
def raise_limit(key: PeriodKey, limit: int) -> Steps[None]:
    """Store a limit that a person has approved, unless a higher one is stored."""
    yield Statement(_FORGET, {"before": key.since - KEEP})
    yield Statement(_RAISE, {**key._asdict(), "value": limit})


@unit
def refuse(key: PeriodKey, limit: int) -> Steps[None]:
    """Store that a person has refused to continue beyond a limit."""
    yield Statement(_FORGET, {"before": key.since - KEEP})
    yield Statement(_REFUSE, {**key._asdict(), "value": limit})


@unit
def mark_warned(key: PeriodKey, at: int) -> Steps[bool]:
    """Store the time of a warning; return False if there was one before."""
    yield Statement(_FORGET, {"before": key.since - KEEP})
    return bool((yield Statement(_WARN, {**key._asdict(), "value": at})))
