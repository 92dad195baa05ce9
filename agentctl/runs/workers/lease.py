"""The lease of the process that sweeps for all processes of a cluster (docs/decisions/0094).

A process asks for the lease only if its heartbeat has shown that no process has it, or if it knows
that the process with the lease has exited. Two processes may sweep at once after a pause of one of
them: that costs time, but every change of a sweep is conditional.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from agentctl import errors
from agentctl.records.times import now
from agentctl.runs.workers.liveness import WorkerDeath, WorkerMonitor
from agentctl.runs.workers.worker import Worker
from agentctl.store.databases import Databases
from agentctl.store.repositories import workers

EXTEND_SECONDS = workers.LEASE_SECONDS / 3
"""Time between two extensions during a long sweep."""


class SweepLease:
    """The lease of the sweep, for one process.

    Args:
        monitor: recognizes processes of this machine that have exited.

    Attributes:
        is_held: True if this process has the lease, by the last answer of the database.
        looks: what that answer has found in the system database; None without the lease.
    """

    def __init__(self, databases: Databases, monitor: WorkerMonitor, worker: Worker) -> None:
        self._databases = databases
        self._monitor = monitor
        self._worker = worker
        self.is_held = False
        self.looks: workers.Looks | None = None

    def may_find(self, *looks: str) -> bool:
        """Return True unless the last answer has found nothing: see the fields of `Looks`."""
        found, is_alone = self.looks, len(self._databases.get_open()) == 1
        return found is None or not is_alone or any(getattr(found, look) for look in looks)

    async def acquire(self) -> bool:
        """Take or extend the lease if it is free. Return True if this process has it."""
        self._monitor.observe(self._worker.heartbeat, self._worker.beat_at)
        system, heartbeat = self._databases.system, self._worker.heartbeat
        sweeper = exited = None
        if not self.is_held:
            known = workers.get_sweeper(now())
            sweeper = await system.read(known) if heartbeat is None else heartbeat.sweeper
        if sweeper is not None and sweeper != self._worker.id:
            if await self._monitor.check_exit(sweeper) is not WorkerDeath.EXITED:
                return False
            exited = sweeper
        work = workers.acquire_sweep(self._worker.id, now(), exited=exited)
        self.looks = await system.write(work)
        self.is_held = self.looks is not None
        if heartbeat is not None and not self.may_find("workers"):
            self._monitor.oldest_heartbeat = heartbeat.beat
        return self.is_held

    @contextlib.asynccontextmanager
    async def extended(self) -> AsyncIterator[None]:
        """Extend the lease while a sweep with the lease takes long."""
        task = asyncio.create_task(self._extend())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _extend(self) -> None:
        while True:
            await asyncio.sleep(EXTEND_SECONDS)
            if self.is_held:
                with contextlib.suppress(errors.AgentctlError):
                    await self.acquire()
