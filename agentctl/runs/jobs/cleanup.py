"""The cleanup of data with a limited lifetime.

That is: events of finished runs, idempotency keys, the sums of single hours, webhook deliveries,
audit entries, idle sessions, decided approvals and stale lock files.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from agentctl.records.audit import EXPIRE
from agentctl.records.times import DAY, HOUR, format_rfc3339, now
from agentctl.runs.jobs.clock_guard import ClockGuard
from agentctl.runs.jobs.retention import (
    Ages,
    append_cleanup_entry,
    delete_decided_approvals,
    delete_idle_sessions,
)
from agentctl.runs.jobs.usage import KEEP_HOURS
from agentctl.runs.workers import process
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import audit, events, idempotency, usage, webhooks, workers

CLEANUP_SECONDS = 60.0
"""Time between two cleanups."""

CLEANUP_SHARE = 0.1
"""Maximum share of its time that the process which sweeps spends on the rows of one kind."""

EVENT_RETENTION = DAY
"""Time that the events of a run are kept after its end, in microseconds."""

DELIVERED_DAYS, UNDELIVERED_DAYS = 7, 30
"""Ages of webhooks that were delivered, and of those that wait or are dead."""

MAXIMUM_DELIVERIES = 100_000
"""Maximum number of webhook deliveries in one database; the oldest delivered ones are deleted
first, ones that wait last."""

NO_AGES = Ages()

_log = logging.getLogger("agentctl.runs")


async def delete_expired(
    databases: Databases,
    *,
    ages: Ages = NO_AGES,
    guard: ClockGuard | None = None,
    seconds: float = CLEANUP_SECONDS * CLEANUP_SHARE,
    deleted: Counter[str] | None = None,
) -> None:
    """Clean up the open databases once.

    Args:
        guard: by a clock that it doubts, only stale lock files are deleted; None to trust it.
        seconds: maximum time for the rows of each kind; later cleanups delete the rest.
        deleted: receives the numbers of deleted rows by their kind.
    """
    counts = Counter[str]() if deleted is None else deleted
    # By the time that was trusted: the clock may have been set since.
    is_trusted, at = (True, now()) if guard is None else (guard.is_trusted, guard.present)
    for database in databases.get_open().values() if is_trusted else ():
        # The earlier of two clocks: one server with a wrong clock must not delete for all.
        moment = min(at, await database.clock())
        await _delete_rows(databases, database, ages, moment, seconds, counts)
    for database in databases.get_open().values() if databases.outbox else ():
        if await database.read(webhooks.count()) > MAXIMUM_DELIVERIES:
            lost = await database.write(webhooks.drop_surplus(MAXIMUM_DELIVERIES))
            if lost:
                _log.warning("%d webhook deliveries were dropped: too many wait", lost)
    present = await databases.system.read(workers.list_workers())
    process.remove_stale_locks(databases.system.lock_folder, {row.worker_id for row in present})


async def _delete_rows(
    databases: Databases,
    database: Database,
    ages: Ages,
    moment: int,
    seconds: float,
    counts: Counter[str],
) -> None:
    async def delete_older(kind: str, has_older: Work[bool], delete: Work[int]) -> None:
        counts[kind] += await _delete_older(database, has_older, delete, seconds)

    for name, delete_ages in (
        ("sessions", delete_idle_sessions), ("approvals", delete_decided_approvals),
    ):  # fmt: skip
        removed = await delete_ages(databases, database, ages, moment, seconds)
        counts[name] += removed
        if removed:
            _log.info("%d %s of database %s were deleted for their age", removed, name, database.id)
    before = moment - EVENT_RETENTION
    await delete_older("events", events.has_older(before), events.delete_older(before))
    before = moment - idempotency.KEY_LIFETIME
    await delete_older("keys", idempotency.has_older(before), idempotency.delete_older(before))
    before = moment - KEEP_HOURS * HOUR
    await delete_older("hours", usage.has_older_hours(before), usage.delete_older_hours(before))
    delivered = moment - DELIVERED_DAYS * DAY
    before = moment - UNDELIVERED_DAYS * DAY
    has_older = webhooks.has_older(delivered, before)
    await delete_older("deliveries", has_older, webhooks.delete_older(delivered, before))
    if database is databases.system and ages.audit is not None:
        before = moment - ages.audit * DAY
        has_older = audit.has_older(before - DAY)
        await delete_older("audit", has_older, _delete_and_record(before))


async def _delete_older(
    database: Database, has_older: Work[bool], delete: Work[int], seconds: float
) -> int:
    """Delete unit by unit, so that other writers get their turn in between.

    A read first finds out whether there is anything to delete: it blocks no writer.
    """
    clock, deleted = asyncio.get_running_loop().time, 0
    end = clock() + seconds
    if not await database.read(has_older, size="large"):
        return 0
    while (batch := await database.write(delete)) and clock() < end:
        deleted += batch
    return deleted + batch


@unit
def _delete_and_record(before: int) -> Steps[int]:
    # Of a signed audit log, only what a signed head allows: verifiers miss everything else.
    head = yield from audit.get_newest_head()
    last = audit.LAST_NUMBER if head is None else head.expired_seq
    deleted = yield from audit.delete_older(before, last)
    if deleted:
        reason = f"older than {format_rfc3339(before)}"
        yield from append_cleanup_entry(EXPIRE, deleted, reason)
    return deleted
