"""Whether the worker that a run names as its owner still lives (design.md "Workers").

Two ways to know. The process is gone: its lock file is free, or its pid is nobody's or another
process's; known at once. Or it is silent: its beat did not change for `DEATH_SECONDS`. Silence is
measured on a clock of our own that only moves while we look and the database takes writes: a
process that slept itself, or a database that was locked for a while, makes nobody look dead, and
the clocks of the machines do not matter. A command does not live long enough to witness anything;
where processes of other machines cannot be told by their locks, it takes the database's word for
how long ago the beat was, which is a time of the same clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.runs import process as locks
from agentctl.runs.process import ProcessIdentity, has_exited
from agentctl.store.databases import Databases
from agentctl.store.repositories import workers
from agentctl.store.repositories.workers import WorkerRow

__all__ = ["DEAD_AFTER_SECONDS", "WorkerDeath", "WorkerMonitor"]

DEAD_AFTER_SECONDS = 15.0
"""How long a worker may be silent."""


class WorkerDeath(Enum):
    """How a worker is known to be dead.

    GONE: its process has ended, and all work of it.
    SILENT: nothing was heard of it, but it may wake up and find its runs ended.
    """

    EXITED = "gone"
    NO_HEARTBEAT = "silent"


@dataclass(frozen=True, slots=True)
class _SeenHeartbeat:
    """A beat, and when it was first seen, in seconds witnessed."""

    beat: int
    at: float


class WorkerMonitor:
    """Judges workers. One a process: it remembers their beats.

    Args:
        databases: the first of them holds the rows of the workers.
        death_seconds: how long a worker may be silent. A third of it is the longest time between
            two looks that counts, so it must be more than the time between two beats and also
            than that between two sweeps.
        clock: seconds, monotonic.

    Attributes:
        complaints: of what keeps its process from looking, or from ending what the dead left.
        oldest_beat: of the workers that the last survey found, in microseconds; None: of nobody.
    """

    def __init__(
        self,
        databases: Databases,
        *,
        death_seconds: float = DEAD_AFTER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._databases = databases
        self._death_seconds = death_seconds
        self._clock = clock
        self.complaints = RateLimitedLog(logging.getLogger("agentctl.runs"))
        self.oldest_heartbeat: int | None = None
        self.is_long_lived = False
        self._heard: dict[str, _SeenHeartbeat] = {}
        self._observed_seconds = 0.0
        self._advanced_at = clock()
        self._version: int | None = None

    async def dead(self, owner: str | None) -> WorkerDeath | None:
        """How the owner of a run is known to be dead; None while it may live.

        Read the run before: its owner had a row then. Nobody, and who has no row, is dead.
        """
        if owner is None:
            return WorkerDeath.EXITED
        self._look()
        row = await self._databases.system.read(workers.get(owner))
        return (
            WorkerDeath.EXITED
            if row is None
            else self._judge(row, await self._read_database_clock())
        )

    async def check_all(self) -> dict[str, WorkerDeath | None]:
        """Every worker that has a row: how it is known to be dead, or None."""
        self._look()
        rows = await self._databases.system.read(workers.list_workers())
        self.oldest_heartbeat = min((row.beat for row in rows), default=None)
        present = {row.worker_id for row in rows}
        self._heard = {owner: heard for owner, heard in self._heard.items() if owner in present}
        at = await self._read_database_clock()
        return {row.worker_id: self._judge(row, at) for row in rows}

    async def _read_database_clock(self) -> int | None:
        """The database's time, where that is to decide; else None."""
        database = self._databases.system
        by_clock = not self.is_long_lived and database.lock_folder is None
        return await database.clock() if by_clock else None

    def _look(self) -> None:
        """Move our clock on: by the time since the last look that found something written.

        Before the beats are read, so that one that comes between is not missed.
        """
        version = self._databases.system.changes()
        if version == self._version:
            return
        present = self._clock()
        self._observed_seconds += min(present - self._advanced_at, self._death_seconds / 3)
        self._advanced_at, self._version = present, version

    def _judge(self, row: WorkerRow, present: int | None) -> WorkerDeath | None:
        folder = self._databases.system.lock_folder
        process = ProcessIdentity(row.host, row.boot_id, row.pid, row.process_start)
        if locks.is_lock_free(folder, row.worker_id) or has_exited(process):
            return WorkerDeath.EXITED
        if present is not None:
            return (
                WorkerDeath.NO_HEARTBEAT
                if present - row.beat >= self._death_seconds * 1_000_000
                else None
            )
        heard = self._heard.get(row.worker_id)
        if heard is None or heard.beat != row.beat:
            self._heard[row.worker_id] = _SeenHeartbeat(row.beat, self._observed_seconds)
            return None
        silent = self._observed_seconds - heard.at
        return WorkerDeath.NO_HEARTBEAT if silent >= self._death_seconds else None
