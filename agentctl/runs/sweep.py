"""The sweep for dead workers and the cleanup of expired rows, by one process for all.

Every process that executes runs asks for the lease of the sweep (`runs/lease.py`); one has it. A
sweep ends the runs of dead workers, removes the workers and rejects expired approvals. The cleanup
(`runs/cleanup.py`) deletes data with a limited lifetime.

A clock that is wrong for a minute would delete all of that data, and nothing brings it back. So a
process deletes only by a clock that it has no reason to doubt (`clock_guard`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from agentctl import errors
from agentctl.runs import process
from agentctl.runs.claims import Claims
from agentctl.runs.cleanup import CLEANUP_SECONDS, CLEANUP_SHARE, NO_AGES, delete_expired
from agentctl.runs.clock_guard import ClockGuard
from agentctl.runs.counters import RunCounters
from agentctl.runs.decisions import expire_approvals
from agentctl.runs.lease import SweepLease
from agentctl.runs.liveness import WorkerDeath, WorkerMonitor
from agentctl.runs.recovery import recover_runs
from agentctl.runs.retention import Ages
from agentctl.runs.tasks import Tasks
from agentctl.runs.usage import UsageSums
from agentctl.runs.worker import Worker
from agentctl.store.databases import Databases
from agentctl.store.repositories import approvals, audit, run_reads, workers
from agentctl.store.repositories.workers import Heartbeat

SWEEP_SECONDS = 2.0
"""Time between two sweeps."""

COUNT_SECONDS = 30.0
"""Time between two counts of what waits, for the metrics."""


_CLOCK_JUMPED = (
    "the clock of this machine was set ahead by more than an hour: old data is not deleted until"
    " the clock is set back, or for a day"
)

_log = logging.getLogger("agentctl.runs")


class Backups(Protocol):
    """The backups that this process makes while it has the lease."""

    def look(self, *, has_lease: bool, may_delete: bool) -> None:
        """Start the backups that are due.

        Args:
            may_delete: False if the clock is doubtful.
        """
        ...


async def watch_workers(
    databases: Databases,
    monitor: WorkerMonitor,
    worker: Worker,
    *,
    sweep_seconds: float = SWEEP_SECONDS,
    cleanup_seconds: float = CLEANUP_SECONDS,
    ages: Ages = NO_AGES,
    sign_audit: Callable[[], Awaitable[None]] | None = None,
    claims: Claims | None = None,
    counters: RunCounters | None = None,
    sums: UsageSums | None = None,
    backups: Backups | None = None,
) -> None:
    """Sweep and clean up in a loop until cancelled, while this process has the lease.

    Failures are logged and retried later.

    Args:
        ages: the ages at which data is deleted.
        sign_audit: signs the entries of the audit log that are due; None signs none.
        claims: those of the engine of this process; None if it executes no runs.
        counters: receive the expired approvals and, every `COUNT_SECONDS`, the numbers of what
            waits; None for no counts.
        sums: those that ended runs are added to; None to leave that to others.
        backups: made by the process that has the lease; None for none.
    """
    sweeper = _Sweeper(
        databases,
        monitor,
        worker,
        cleanup_seconds,
        ages,
        sign_audit,
        claims,
        counters,
        sums,
        backups,
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
        ages: Ages,
        sign_audit: Callable[[], Awaitable[None]] | None,
        claims: Claims | None,
        counters: RunCounters | None,
        sums: UsageSums | None,
        backups: Backups | None,
    ) -> None:
        self._databases = databases
        self._monitor = monitor
        self._worker = worker
        self._cleanup_seconds = cleanup_seconds
        self._ages = ages
        self._sign_audit = sign_audit
        self._claims = claims
        self._counters = counters
        self._sums = sums
        self._backups = backups
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
        has_lease = await self._lease.acquire()
        if self._backups is not None:
            self._backups.look(has_lease=has_lease, may_delete=self._guard.is_trusted)
        if has_lease:
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
            ages=self._ages,
            rows=self._guard.is_trusted,
            at=self._guard.present,  # the clock may have been set since
            seconds=seconds,
            deleted=None if self._counters is None else self._counters.deleted,
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
