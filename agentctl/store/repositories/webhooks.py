"""Deliveries of webhooks, and the disabled endpoints in the system database.

A delivery is written in the transaction of its fact. An attempt is claimed by a conditional update
that moves `next_at` to the end of a lease, so that another process makes the next attempt if this
one dies. The end of an attempt is stored only by the holder of the lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from agentctl.interface.requests.administration import DeliveryFilter
from agentctl.records.webhooks import DeliveryState
from agentctl.store.compared import Filtered, build_lead, find_by_prefix
from agentctl.store.database import Sql, Statement, Steps, Value, Work, unit
from agentctl.store.listing import Listing, RowPage, Slice
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import EVERYONE

DELETE_BATCH = 500
"""Deliveries that one unit of work deletes."""


@dataclass(slots=True)
class DeliveryRow:
    """A stored delivery without its body. Times are microseconds UTC."""

    delivery_id: str
    event_id: str
    webhook_id: str
    type: str

    run_id: str
    """The run of the fact; "" for the fact of a halt."""

    state: DeliveryState
    attempts: int
    next_at: int
    last_status: int | None
    last_error: str | None
    created_at: int
    delivered_at: int | None


class PublishedRun(NamedTuple):
    """The columns of a run that its events have; see `records.runs.RunRow`."""

    run_id: str
    session_id: str
    parent_run_id: str | None
    component_type: str
    component_id: str
    user_id: str | None
    status: str
    error_code: str | None
    cancel_reason: str | None
    created_at: int
    finished_at: int | None
    paused_at: int | None
    metrics: str | None
    content: str | None
    version: str | None
    files: str | None


class NewDelivery(NamedTuple):
    """A fact for one endpoint; `body` is the JSON text that is signed and sent."""

    delivery_id: str
    event_id: str
    webhook_id: str
    type: str
    run_id: str
    body: str
    created_at: int


class Attempt(NamedTuple):
    """A claimed attempt; `attempts` counts it."""

    delivery_id: str
    event_id: str
    body: str
    attempts: int


class AttemptEnd(NamedTuple):
    """The outcome of an attempt: the new values of its row."""

    state: str
    next_at: int
    last_status: int | None
    last_error: str | None
    delivered_at: int | None


@dataclass(frozen=True, slots=True)
class DeliveryCount:
    """The deliveries of one endpoint with one state, and the time of the oldest one."""

    webhook_id: str
    state: str
    count: int
    oldest_at: int


class DisabledWebhook(NamedTuple):
    """An endpoint to which nothing is sent. Times are microseconds UTC."""

    webhook_id: str
    disabled_at: int
    reason: str


_COLUMNS = ", ".join(field.name for field in fields(DeliveryRow))

_REPORTED = Sql(f"SELECT {', '.join(PublishedRun._fields)} FROM runs WHERE run_id = :run_id")
_CREATE = Sql(
    "INSERT INTO webhook_deliveries (delivery_id, event_id, webhook_id, type, run_id, body, state,"
    " attempts, next_at, created_at) VALUES (:delivery_id, :event_id, :webhook_id, :type, :run_id,"
    " :body, 'waiting', 0, :created_at, :created_at)"
)
_NEXT = Sql(
    "SELECT min(next_at) FROM webhook_deliveries"
    " WHERE webhook_id = :webhook_id AND state = 'waiting'"
)
_CLAIM = Sql(
    "UPDATE webhook_deliveries SET lease_by = :holder, next_at = :until, attempts = attempts + 1"
    " WHERE delivery_id IN (SELECT delivery_id FROM webhook_deliveries"
    " WHERE webhook_id = :webhook_id AND state = 'waiting' AND next_at <= :now"
    " ORDER BY next_at LIMIT :limit) AND state = 'waiting' AND next_at <= :now"
    " RETURNING delivery_id, event_id, body, attempts"
)
_RETRIES = 9
"""Attempts after the first one."""

# The wall clock was ahead when `next_at` was written, and was set back since. The lease of an
# attempt, and a delivery without one, wait for no schedule.
_WAITS_TOO_LONG = (
    "state = 'waiting' AND next_at > :now + cast(:tolerance as bigint) + CASE"
    " WHEN attempts = 0 OR lease_by IS NOT NULL THEN 0"
    " WHEN last_status IN (429, 502, 503, 504) THEN cast(:longest as bigint)"
    + "".join(
        f" WHEN attempts = {number} THEN cast(:after_{number} as bigint)"
        for number in range(1, _RETRIES + 1)
    )
    + " ELSE cast(:longest as bigint) END"
)
_ANY_WAITS_TOO_LONG = Sql(f"SELECT 1 FROM webhook_deliveries WHERE {_WAITS_TOO_LONG} LIMIT 1")
_RECALL = Sql(
    f"UPDATE webhook_deliveries SET next_at = :now WHERE {_WAITS_TOO_LONG} RETURNING delivery_id"
)
_END = Sql(
    "UPDATE webhook_deliveries SET state = :state, next_at = :next_at, lease_by = NULL,"
    " last_status = :last_status, last_error = :last_error, delivered_at = :delivered_at"
    " WHERE delivery_id = :delivery_id AND lease_by = :holder AND attempts = :attempts"
    " AND state = 'waiting' RETURNING delivery_id"
)
_RELEASE = Sql(
    "UPDATE webhook_deliveries SET lease_by = NULL, next_at = :now, attempts = attempts - 1"
    " WHERE lease_by = :holder AND state = 'waiting'"
)
_GET = Sql(f"SELECT {_COLUMNS} FROM webhook_deliveries WHERE delivery_id = :delivery_id")
_REPEAT = Sql(
    "UPDATE webhook_deliveries SET state = 'waiting', attempts = 0, next_at = :now,"
    " lease_by = NULL, delivered_at = NULL WHERE delivery_id = :delivery_id"
    f" RETURNING {_COLUMNS}"
)
_HOLD = Sql(
    "UPDATE webhook_deliveries SET state = 'dead', lease_by = NULL, last_error = :reason"
    " WHERE state = 'waiting' RETURNING delivery_id"
)
_COUNTS = Sql(
    "SELECT webhook_id, state, count(*), min(created_at) FROM webhook_deliveries"
    " GROUP BY webhook_id, state ORDER BY webhook_id, state"
)
_OLDER = (
    "SELECT delivery_id FROM webhook_deliveries"
    " WHERE (state = 'delivered' AND created_at < :delivered_before)"
    " OR (state IN ('waiting', 'dead') AND created_at < :before)"
)
_ANY_OLDER = Sql(f"{_OLDER} LIMIT 1")
# `MATERIALIZED`, so that the batch is selected once; see events.py.
_DELETE_OLDER = Sql(
    f"WITH batch AS MATERIALIZED ({_OLDER} LIMIT {DELETE_BATCH} FOR UPDATE SKIP LOCKED)"
    " DELETE FROM webhook_deliveries WHERE delivery_id IN (SELECT delivery_id FROM batch)"
    " RETURNING delivery_id"
)
_COUNT = Sql("SELECT count(*) FROM webhook_deliveries")
_DROP = Sql(
    "DELETE FROM webhook_deliveries WHERE delivery_id IN (SELECT delivery_id"
    " FROM webhook_deliveries WHERE state = :state ORDER BY created_at, delivery_id LIMIT :limit)"
    " RETURNING delivery_id"
)
_DISABLE = Sql(
    "INSERT INTO disabled_webhooks (webhook_id, disabled_at, reason)"
    " VALUES (:webhook_id, :disabled_at, :reason) ON CONFLICT (webhook_id) DO NOTHING"
)
_ENABLE = Sql("DELETE FROM disabled_webhooks WHERE webhook_id = :webhook_id RETURNING webhook_id")
_DISABLED = Sql("SELECT webhook_id, disabled_at, reason FROM disabled_webhooks ORDER BY webhook_id")


def get_reported_run(run_id: str) -> Work[PublishedRun | None]:
    """Return the columns of a run that its events have."""
    return _REPORTED.first(PublishedRun, run_id=run_id)


def create(delivery: NewDelivery) -> Work[None]:
    """Store a delivery that is due at once."""
    return _CREATE.execute(**delivery._asdict())


def get_next_time(webhook_id: str) -> Work[int | None]:
    """Return the time of the next attempt of an endpoint; None if nothing waits."""
    return _NEXT.value(webhook_id=webhook_id)


def claim(webhook_id: str, holder: str, now: int, until: int, limit: int) -> Work[list[Attempt]]:
    """Claim due attempts of an endpoint, the oldest first.

    Args:
        holder: the id of the process that makes them.
        until: the end of the lease; if no end is stored before it, they are due again.
    """
    return _CLAIM.rows(
        Attempt, webhook_id=webhook_id, holder=holder, now=now, until=until, limit=limit
    )


class Waits(NamedTuple):
    """The longest waits of deliveries that the present clock allows, in microseconds."""

    after: Sequence[int]
    """The wait after each number of attempts, from 1 on."""

    longest: int
    """The wait after a response that may ask for one."""

    tolerance: int
    """Added to each wait, because the clocks of servers differ."""

    def build_values(self, now: int) -> dict[str, Value]:
        """Return the parameters of the statements that compare them with a time."""
        after = {f"after_{number}": wait for number, wait in enumerate(self.after, 1)}
        return {"now": now, "longest": self.longest, "tolerance": self.tolerance, **after}


def has_too_long_waits(waits: Waits, now: int) -> Work[bool]:
    """Return True if `recall` would find deliveries."""
    return _ANY_WAITS_TOO_LONG.has_rows(**waits.build_values(now))


def recall(waits: Waits, now: int) -> Work[int]:
    """Let deliveries be due that wait longer than their schedule allows. Return their number.

    Their times were written by a clock that was ahead, and was set back since.
    """
    return _RECALL.count_rows(**waits.build_values(now))


def end_attempt(attempt: Attempt, holder: str, end: AttemptEnd) -> Work[bool]:
    """Store the outcome of an attempt.

    Returns:
        False, without a change, if the lease ended and another process made an attempt.
    """
    return _END.has_rows(
        delivery_id=attempt.delivery_id, attempts=attempt.attempts, holder=holder, **end._asdict()
    )


def release(holder: str, now: int) -> Work[None]:
    """Return the attempts that a process has claimed and not ended; they do not count."""
    return _RELEASE.execute(holder=holder, now=now)


def get(delivery_id: str) -> Work[DeliveryRow | None]:
    """Return a delivery without its body."""
    return _GET.first(DeliveryRow, delivery_id=delivery_id)


def repeat(delivery_id: str, now: int) -> Work[DeliveryRow | None]:
    """Let a delivery wait again, with all its attempts; return None if there is no such one."""
    return _REPEAT.first(DeliveryRow, delivery_id=delivery_id, now=now)


def hold_waiting(reason: str) -> Work[int]:
    """Let no waiting delivery be sent until it is repeated. Return their number.

    Args:
        reason: the text that its record shows as its last error.
    """
    return _HOLD.count_rows(reason=reason)


def count_by_state() -> Work[list[DeliveryCount]]:
    """Count the deliveries of each endpoint."""
    return _COUNTS.rows(DeliveryCount)


def has_older(delivered_before: int, before: int) -> Work[bool]:
    """Return True if `delete_older` has rows to delete."""
    return _ANY_OLDER.has_rows(delivered_before=delivered_before, before=before)


def delete_older(delivered_before: int, before: int) -> Work[int]:
    """Delete a batch of old deliveries. Call it again until it returns 0.

    Args:
        delivered_before: deliveries that have arrived are deleted if they are older than this.
        before: deliveries that wait or are dead are deleted if they are older than this.
    """
    return _DELETE_OLDER.count_rows(delivered_before=delivered_before, before=before)


@unit
def drop_surplus(maximum: int) -> Steps[int]:
    """Delete the oldest deliveries above a number: first delivered, then dead, then waiting.

    Returns:
        The number of deleted deliveries that were waiting.
    """
    ((count,),) = yield Statement(_COUNT)
    surplus = count - maximum

    waiting_count = 0
    for state in ("delivered", "dead", "waiting"):
        if surplus <= 0:
            break

        values: dict[str, Value] = {"state": state, "limit": surplus}
        deleted_rows = yield Statement(_DROP, values)
        surplus -= len(deleted_rows)
        if state == "waiting":
            waiting_count = len(deleted_rows)

    return waiting_count


def count() -> Work[int]:
    """Return the number of deliveries."""
    return _COUNT.value()


def disable(webhook_id: str, at: int, reason: str) -> Work[None]:
    """Store that nothing is sent to an endpoint any more."""
    return _DISABLE.execute(webhook_id=webhook_id, disabled_at=at, reason=reason)


def enable(webhook_id: str) -> Work[bool]:
    """Send to an endpoint again; return False if it was not disabled."""
    return _ENABLE.has_rows(webhook_id=webhook_id)


def list_disabled() -> Work[list[DisabledWebhook]]:
    """Return the disabled endpoints."""
    return _DISABLED.rows(DisabledWebhook)


LISTING = Listing(table="webhook_deliveries", columns=_COLUMNS, id="delivery_id")

_LEADS = tuple(map(build_lead, ("run_id", "webhook_id state", "state", "")))


def list_page(
    filter: DeliveryFilter, page: Slice, totals: ListTotals | None = None
) -> Work[RowPage[DeliveryRow]]:
    """Read a page of the deliveries that match a filter, and their total.

    Args:
        page: the page, in the order of `created_at`.
        totals: the remembered totals of the database.
    """
    equal: dict[str, Value] = {
        "state": filter.state,
        "webhook_id": filter.webhook_id,
        "run_id": filter.run_id,
    }

    filtered = Filtered(
        LISTING,
        _LEADS,
        EVERYONE,
        equal,
        times=(filter.created_after, None),
        totals=totals,
        ranges=find_by_prefix("delivery_id", filter.id_prefix),
    )

    return filtered.list_page(page, DeliveryRow)
