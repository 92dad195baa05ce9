"""The table of the jobs of a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from agentctl.runs.desk.decisions import expire_approvals
from agentctl.runs.engine.changes import LEGS_PAUSE_SECONDS, LEGS_SECONDS, LegWatch
from agentctl.runs.engine.claims import ADVANCE_SECONDS
from agentctl.runs.jobs.cleanup import (
    CLEANUP_SECONDS,
    CLEANUP_SHARE,
    Ages,
    ClockGuard,
    delete_expired,
    delete_unused_bytes,
    observe_clock,
)
from agentctl.runs.jobs.lanes import Job, Lane
from agentctl.runs.jobs.sweep import SWEEP_SECONDS, sweep_dead_workers
from agentctl.runs.workers.worker import Worker
from agentctl.service.hosting import Hosting
from agentctl.service.operations.audit import HeadSigner
from agentctl.store.database import Database
from agentctl.store.repositories import approvals
from agentctl.webhooks.deliveries import TICK_SECONDS

COUNT_SECONDS = 30.0
"""Time between two counts of waiting runs and approvals, for the metrics."""

COUNT_DELIVERIES_SECONDS = 10.0
"""Time between two counts of the deliveries that wait, for the metrics."""


def list_lanes(hosting: Hosting, worker: Worker) -> list[Lane]:
    """Return the jobs of a server.

    The first lane is the sweep. The clock is read and the lease is taken first. The runs of dead
    workers end before the runs that wait for them continue.

    Raises:
        InvalidKey: the key of `[audit] key_file` cannot be used.
    """
    settings = hosting.settings
    databases = hosting.databases
    monitor = hosting.monitor
    claims = hosting.engine.claims
    counters = hosting.engine.counters
    lease = hosting.jobs.lease
    deliveries = hosting.deliveries
    sums = hosting.sums
    halts = hosting.gate.halts

    guard = ClockGuard()
    legs = LegWatch(claims, databases, hosting.changes, halts)
    is_measured = bool(settings.metrics.listen)
    cleanup_seconds = CLEANUP_SECONDS * CLEANUP_SHARE

    def in_each(work: Callable[[Database], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
        async def work_in_open_databases() -> None:
            for database in databases.get_open().values():
                await work(database)

        return work_in_open_databases

    async def count_waiting(database: Database) -> None:
        counters.waiting[database.id] = await database.read(approvals.count_waiting())

    async def sweep() -> None:
        await sweep_dead_workers(databases, monitor, worker.id, lease.take_survey())

    # A job without a function is left out.
    sign = None
    key = hosting.statement_key()
    if key is not None:
        sign = HeadSigner(databases.system, settings.audit, key).sign_due

    count = None
    if is_measured:
        count = in_each(count_waiting)

    deliver = None
    count_deliveries = None
    if settings.webhooks:
        deliver = deliveries.start_due
        if is_measured:
            count_deliveries = deliveries.count_waiting

    expire = partial(expire_approvals, count_decision=counters.count_decision)
    advance = in_each(claims.advance_stalled)
    sweep_jobs = [
        Job("clock", lambda: observe_clock(guard, databases, monitor.rate_limited_log)),
        Job("lease", lease.acquire),
        Job("halt_ends", halts.end_due, leased=True),
        Job("dead_workers", sweep, leased=True, look="workers"),
        Job("approvals", in_each(expire), leased=True, look="approvals"),
        Job("queue", in_each(claims.end_overdue), leased=True, look="waiting"),
        Job("stalled", advance, leased=True, seconds=ADVANCE_SECONDS, look="waiting"),
        Job("usage", sums.add_ended_runs, leased=True, look="usage"),
        Job("audit_heads", sign, leased=True),
        Job("claims", claims.claim_in_open_databases),
        Job("counts", count, seconds=COUNT_SECONDS),
    ]

    clean_up = partial(
        delete_expired,
        databases,
        ages=Ages.from_settings(settings),
        guard=guard,
        seconds=cleanup_seconds,
        deleted=counters.deleted,
    )
    delete_bytes = partial(delete_unused_bytes, hosting.uploads, databases, guard)
    cleanup_jobs = [
        Job("cleanup", clean_up, leased=True),
        Job("file_bytes", delete_bytes, leased=True),
        Job("earlier_usage", partial(sums.count_earlier_runs, cleanup_seconds), leased=True),
    ]

    delivery_jobs = [
        Job("deliveries", deliver),
        Job("delivery_counts", count_deliveries, seconds=COUNT_DELIVERIES_SECONDS),
    ]
    leg_jobs = [Job("halts", legs.observe_halts), Job("legs", legs.claim_changed)]

    return [
        Lane(SWEEP_SECONDS, sweep_jobs, within=lease.extended, rests=True),
        Lane(CLEANUP_SECONDS, cleanup_jobs, steady=True),
        Lane(TICK_SECONDS, delivery_jobs, woken=deliveries.due),
        Lane(LEGS_SECONDS, leg_jobs, woken=legs.notified, rest=LEGS_PAUSE_SECONDS),
    ]
