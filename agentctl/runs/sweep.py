"""The sweep for dead workers and the cleanup of expired rows, by one process for all.

Every process that executes runs asks for the lease of the sweep (`runs/lease.py`); one has it. A
sweep ends the runs of dead workers, removes the workers and rejects expired approvals. The cleanup
deletes data with a limited lifetime: events of finished runs, idempotency keys, stale lock files,
audit entries and the sums of single hours.

A clock that is wrong for a minute would delete all of that data, and nothing brings it back. So a
process deletes rows only by a clock that it has no reason to doubt (`ClockGuard`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from agentctl import errors
from agentctl.records.audit import EXPIRE
from agentctl.records.times import format_rfc3339, now
from agentctl.runs import process
from agentctl.runs.claims import Claims
from agentctl.runs.decisions import expire_approvals
from agentctl.runs.lease import SweepLease
from agentctl.runs.liveness import WorkerDeath, WorkerMonitor
from agentctl.runs.recovery import recover_runs
from agentctl.runs.supervision import RunCounters
from agentctl.runs.tasks import Tasks
from agentctl.runs.usage import KEEP_HOURS, UsageSums
from agentctl.runs.worker import Worker
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import (
    approvals,
    audit,
    audit_heads,
    events,
    idempotency,
    run_reads,
    usage,
    webhooks,
    workers,
)
from agentctl.store.repositories.usage import HOUR
from agentctl.store.repositories.workers import Heartbeat

SWEEP_SECONDS = 2.0
"""Time between two sweeps."""

CLEANUP_SECONDS = 60.0
"""Time between two cleanups."""

CLEANUP_SHARE = 0.1
"""Maximum share of its time that the process which sweeps spends on the rows of one kind."""

DAY_MICROSECONDS = 24 * 60 * 60 * 1_000_000

EVENT_RETENTION = DAY_MICROSECONDS
"""Time that the events of a run are kept after its end, in microseconds."""

DELIVERY_DAYS = 7, 30
"""Days that webhook deliveries are kept: delivered ones; those that wait or are dead."""

MAXIMUM_DELIVERIES = 100_000
"""Maximum number of webhook deliveries in one database; the oldest delivered ones are deleted
first, ones that wait last."""

COUNT_SECONDS = 30.0
"""Time between two counts of what waits, for the metrics."""


_CLOCK_JUMPED = (
    "the clock of this machine was set ahead by more than an hour: old data is not deleted until"
    " the clock is set back, or for a day"
)

_log = logging.getLogger("agentctl.runs")


async def watch_workers(
    databases: Databases,
    monitor: WorkerMonitor,
    worker: Worker,
    *,
    sweep_seconds: float = SWEEP_SECONDS,
    cleanup_seconds: float = CLEANUP_SECONDS,
    audit_days: int | None = None,
    sign_audit: Callable[[], Awaitable[None]] | None = None,
    claims: Claims | None = None,
    counters: RunCounters | None = None,
    sums: UsageSums | None = None,
) -> None:
    """Sweep and clean up in a loop until cancelled, while this process has the lease.

    Failures are logged and retried later.

    Args:
        audit_days: days that audit entries are kept; None for no limit.
        sign_audit: signs the entries of the audit log that are due; None signs none.
        claims: those of the engine of this process; None if it executes no runs.
        counters: receive the expired approvals and, every `COUNT_SECONDS`, the numbers of what
            waits; None for no counts.
        sums: those that ended runs are added to; None to leave that to others.
    """
    sweeper = _Sweeper(
        databases, monitor, worker, cleanup_seconds, audit_days, sign_audit, claims, counters, sums
    )
    try:
        while True:
            await asyncio.sleep(sweep_seconds)
            if databases.get_open():
                await _log_failure(sweeper.sweep(), monitor)
    finally:
        await sweeper.cleanups.cancel_all()


async def _log_failure(work: Awaitable[None], monitor: WorkerMonitor) -> None:
    try:
        await work
    except errors.AgentctlError as error:
        monitor.rate_limited_log.log("the sweep for dead workers failed: %s", error.detail)
    except Exception as error:
        monitor.rate_limited_log.log("the sweep for dead workers failed", cause=error)


class _Sweeper:
    """The sweeps of one process; see `watch_workers`."""

    def __init__(
        self,
        databases: Databases,
        monitor: WorkerMonitor,
        worker: Worker,
        cleanup_seconds: float,
        audit_days: int | None,
        sign_audit: Callable[[], Awaitable[None]] | None,
        claims: Claims | None,
        counters: RunCounters | None,
        sums: UsageSums | None,
    ) -> None:
        self._databases = databases
        self._monitor = monitor
        self._worker = worker
        self._cleanup_seconds = cleanup_seconds
        self._audit_days = audit_days
        self._sign_audit = sign_audit
        self._claims = claims
        self._counters = counters
        self._sums = sums
        self._clock = asyncio.get_running_loop().time
        self._guard = ClockGuard()
        self._compared = False
        self._lease = SweepLease(databases, monitor, worker)
        self._seen: Heartbeat | None = None
        self._cleanup: asyncio.Task[None] | None = None
        self._next_cleanup = self._clock() + cleanup_seconds
        self._next_count = self._clock()
        self.cleanups = Tasks()

    async def sweep(self) -> None:
        """Sweep for all processes if this one has the lease, then go on with waiting runs."""
        databases, monitor, worker = self._databases, self._monitor, self._worker
        if self._guard.observe():
            monitor.rate_limited_log.log(_CLOCK_JUMPED)
        if not self._compared:
            self._guard.compare(await databases.system.read(audit.get_newest_time()))
            self._compared = True
        monitor.observe(worker.heartbeat, worker.beat_at)
        if await self._lease.acquire():
            async with self._lease.extended():
                await sweep_dead_workers(databases, monitor, worker.id)
                await reject_expired_approvals(databases, self._counters)
                if self._claims is not None:
                    for database in databases.get_open().values():
                        await self._claims.sweep_queue(database)
                if self._sums is not None:
                    await self._sums.add_ended_runs()
                if self._sign_audit is not None:
                    await self._sign_audit()
            self._clean_up()
        else:
            monitor.oldest_heartbeat = None
        if self._claims is not None:
            latest, self._seen = self._seen, worker.heartbeat
            beat = None if self._seen is latest else self._seen
            in_system = beat is not None and beat.has_waiting_runs
            await continue_waiting_runs(databases, self._claims, in_system=in_system)
        if self._counters is not None and self._clock() >= self._next_count:
            self._next_count = self._clock() + COUNT_SECONDS
            await count_waiting_runs(databases, self._counters)

    def _clean_up(self) -> None:
        """Start a cleanup if it is due. Dead workers do not wait for it."""
        is_active = self._cleanup is not None and not self._cleanup.done()
        if is_active or self._clock() < self._next_cleanup:
            return
        self._next_cleanup = self._clock() + self._cleanup_seconds
        self._cleanup = self.cleanups.start(_log_failure(self._execute_cleanup(), self._monitor))

    async def _execute_cleanup(self) -> None:
        seconds = self._cleanup_seconds * CLEANUP_SHARE
        await delete_expired(
            self._databases,
            audit_days=self._audit_days,
            rows=self._guard.is_trusted,
            seconds=seconds,
        )
        if self._sums is not None:
            await self._sums.count_earlier_runs(seconds)


async def count_waiting_runs(databases: Databases, counters: RunCounters) -> None:
    """Store what waits in each open database in the counters of this process."""
    for database_id, database in databases.get_open().items():
        counters.waiting[database_id] = await database.read(approvals.count_waiting())


async def reject_expired_approvals(
    databases: Databases, counters: RunCounters | None = None
) -> None:
    """Reject the expired approvals in each open database.

    Args:
        counters: receive the approvals; None for no counts.

    Raises:
        Unavailable: a database does not answer.
    """
    for database in databases.get_open().values():
        await expire_approvals(database, counters.count_decision if counters else None)


async def continue_waiting_runs(
    databases: Databases, claims: Claims, *, in_system: bool = True
) -> None:
    """Claim the legs and the queued runs that no process has claimed yet.

    Args:
        in_system: False if no run of the system database waits, as the heartbeat has shown.

    Raises:
        Unavailable: a database does not answer.
    """
    for database in databases.get_open().values():
        if database is not databases.system or in_system:
            await claims.claim_waiting(database)


async def sweep_dead_workers(
    databases: Databases, monitor: WorkerMonitor, own_id: str
) -> list[str]:
    """End the runs of every dead worker, then remove the worker.

    Args:
        databases: the runs of a dead worker with a row are searched in all databases; those of a
            worker without a row in the open databases.
        own_id: the worker of this process, which is never judged.

    Returns:
        Ids of the runs that this sweep has ended.

    Raises:
        Unavailable: the system database does not answer. Failures of the others are logged.
    """
    # Read the owners first: a worker has its row before its first run, so an owner that has no row
    # afterwards is dead.
    owners: dict[str, set[str | None]] = {}
    for database_id, database in databases.get_open().items():
        try:
            owners[database_id] = set(await database.read(run_reads.list_owners_at_work()))
        except errors.AgentctlError as error:
            monitor.rate_limited_log.log(
                "runs of database %s could not be read: %s", database_id, error.detail
            )
    judged = await monitor.check_all()
    ended: list[str] = []
    for database_id, live in owners.items():
        for owner in live - judged.keys() - {own_id}:
            exited = WorkerDeath.EXITED
            ended += await _recover_database(databases, monitor, database_id, owner, exited) or []
    for owner, death in judged.items():
        if death is not None and owner != own_id:
            ended += await _remove_dead_worker(databases, monitor, owner, death)
    return ended


async def _remove_dead_worker(
    databases: Databases, monitor: WorkerMonitor, owner: str, death: WorkerDeath
) -> list[str]:
    results = [
        await _recover_database(databases, monitor, database_id, owner, death)
        for database_id in databases
    ]
    ended = [run_id for run_ids in results if run_ids is not None for run_id in run_ids]
    if None not in results and await databases.system.write(workers.remove(owner)):
        process.remove_lock(databases.system.lock_folder, owner)
        _log.warning(
            "worker %s is dead (%s); %d of its runs were ended", owner, death.value, len(ended)
        )
    return ended


async def _recover_database(
    databases: Databases,
    monitor: WorkerMonitor,
    database_id: str,
    owner: str | None,
    death: WorkerDeath,
) -> list[str] | None:
    try:
        return await recover_runs(
            databases[database_id],
            owner,
            may_still_run=death is WorkerDeath.NO_HEARTBEAT,
            on_ended=monitor.on_lost_run,
        )
    except errors.AgentctlError as error:
        monitor.rate_limited_log.log(
            "database %s could not be recovered: %s", database_id, error.detail
        )
    except Exception as error:
        monitor.rate_limited_log.log(
            "a run of database %s could not be ended", database_id, cause=error
        )
    return None


async def delete_expired(
    databases: Databases,
    *,
    audit_days: int | None = None,
    rows: bool = True,
    seconds: float = CLEANUP_SECONDS * CLEANUP_SHARE,
) -> None:
    """Clean up the open databases once.

    Args:
        audit_days: days that audit entries are kept; None for no limit.
        rows: False to delete no rows, only stale lock files.
        seconds: maximum time for the rows of each kind; later cleanups delete the rest.

    Raises:
        Unavailable: a database does not answer.
    """
    for database in databases.get_open().values() if rows else ():
        # The earlier of two clocks: one server with a wrong clock must not delete for all.
        moment = min(now(), await database.clock())
        before = moment - EVENT_RETENTION
        has_older = events.has_older(before)
        await _delete_older(database, has_older, events.delete_older(before), seconds)
        before = moment - idempotency.KEY_LIFETIME
        has_older = idempotency.has_older(before)
        await _delete_older(database, has_older, idempotency.delete_older(before), seconds)
        before = moment - KEEP_HOURS * HOUR
        has_older = usage.has_older_hours(before)
        await _delete_older(database, has_older, usage.delete_older_hours(before), seconds)
        delivered, others = (moment - days * DAY_MICROSECONDS for days in DELIVERY_DAYS)
        has_older = webhooks.has_older(delivered, others)
        delete = webhooks.delete_older(delivered, others)
        await _delete_older(database, has_older, delete, seconds)
        if database is databases.system and audit_days is not None:
            before = moment - audit_days * DAY_MICROSECONDS
            has_older = audit.has_older(before - DAY_MICROSECONDS)
            await _delete_older(database, has_older, _delete_and_record(before), seconds)
    for database in databases.get_open().values() if databases.outbox else ():
        if await database.read(webhooks.count()) > MAXIMUM_DELIVERIES:
            lost = await database.write(webhooks.drop_surplus(MAXIMUM_DELIVERIES))
            if lost:
                _log.warning("%d webhook deliveries were dropped: too many wait", lost)
    present = await databases.system.read(workers.list_workers())
    process.remove_stale_locks(databases.system.lock_folder, {row.worker_id for row in present})


async def _delete_older(
    database: Database, has_older: Work[bool], delete: Work[int], seconds: float
) -> None:
    """Delete unit by unit, so that other writers get their turn in between.

    A read first finds out whether there is anything to delete: it blocks no writer.
    """
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    if not await database.read(has_older, size="large"):
        return
    while await database.write(delete) and clock() < end:
        pass


@unit
def _delete_and_record(before: int) -> Steps[int]:
    # Of a signed audit log, only what a signed head allows: verifiers miss everything else.
    head = yield from audit_heads.get_newest()
    last = audit.LAST_NUMBER if head is None else head.expired_seq
    deleted = yield from audit.delete_older(before, last)
    if deleted:
        entry = audit.NewAuditEntry(
            at=now(),
            principal="system:cleanup",
            via="local",
            operation=EXPIRE,
            resource=None,
            outcome="allowed",
            status=None,
            reason=f"older than {format_rfc3339(before)}",
            request_id=None,
            count=deleted,
        )
        yield from audit.append_entry(entry)
    return deleted


JUMP = 60 * 60 * 1_000_000
"""Microseconds that the wall clock may advance beyond the steady clock between two looks."""

HOLD = 24 * 60 * 60 * 1_000_000
"""Microseconds of the steady clock for which a doubtful clock must run on before it is trusted, and
the age of the newest row from which the clock of a new process is doubtful."""


def read_steady_clock() -> int:
    """Return the time since the start of the machine in microseconds, with suspensions if known."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000
    return time.monotonic_ns() // 1_000


class ClockGuard:
    """The wall clock of this process, compared with its steady clock.

    The clock of a new process is doubtful until `compare` is called. A clock that jumps ahead
    becomes doubtful; it is trusted again when it jumps back, or after a day without a jump.

    Args:
        wall: the wall clock in microseconds.
        steady: a clock that is never set, in microseconds.
    """

    def __init__(
        self, *, wall: Callable[[], int] = now, steady: Callable[[], int] = read_steady_clock
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._seen = steady()
        self._offset = wall() - self._seen
        self._before_jump: int | None = None
        self._trusted_from = self._seen + HOLD

    @property
    def is_trusted(self) -> bool:
        return self._seen >= self._trusted_from

    def compare(self, newest: int | None) -> None:
        """Trust the clock of a new process if it is at most a day ahead of `newest`.

        That is the time of the newest row; None without rows.
        """
        if newest is not None and self._wall() - newest <= HOLD:
            self._trusted_from = self._seen

    def observe(self) -> bool:
        """Look at the clocks; call it every few seconds. Return True if a jump ahead was found."""
        steady = self._steady()
        offset, passed = self._wall() - steady, steady - self._seen
        self._seen = steady
        if offset - self._offset > JUMP or passed > HOLD:
            if self._before_jump is None:
                self._before_jump = self._offset
            self._offset = offset
            self._trusted_from = steady + HOLD
            return True
        self._offset = offset
        if self._before_jump is not None and offset - self._before_jump <= JUMP:
            self._before_jump = None
            self._trusted_from = steady
        elif self._before_jump is not None and self.is_trusted:
            self._before_jump = None
        return False
