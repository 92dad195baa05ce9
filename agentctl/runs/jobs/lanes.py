"""The jobs of a server: how one is declared, and the one loop that runs them.

The table of jobs is in `service/jobs.py`. Jobs of one lane run one after the other, in the order of
the table; a job that fails ends the pass of its lane, because the next ones use the same databases.
Lanes run at the same time, so that a long job delays no other lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from agentctl import errors
from agentctl.records.logs import RateLimitedLog
from agentctl.records.times import DurationHistogram
from agentctl.runs.workers.worker import SweepLease
from agentctl.store.repositories.workers import Looks
from agentctl.work.event_loop import Tasks

JOB_BUCKETS = (0.1, 1.0, 10.0)
"""Bounds of the histogram of the durations of jobs, in seconds."""

CLOSE_SECONDS = 5.0
"""Maximum time that the end of a server waits for its jobs.

They may wait for a disk or a database that does not respond.
"""

REST = 2.5
"""The longest pause of a lane that rests, as a multiple of its seconds.

The lease of the sweep, which its lane extends, lasts three times as long as these seconds.
"""

JOB_ENDS = ("completed", "failed")
"""The ends of the run of a job, as the metrics name them."""


@dataclass(frozen=True, slots=True)
class Job:
    """Work that a server does again and again."""

    name: str
    """The name in the metrics and in the log."""

    run: Callable[[], Awaitable[object]] | None
    """Does the work that is due, and bounds its own time. None if there is no such work."""

    leased: bool = False
    """True if only the process with the lease of the sweep does it."""

    seconds: float = 0.0
    """Time between two runs, if it is longer than the pause of the lane."""

    look: str = ""
    """The field of `Looks` that shows its work; "" for no field.

    A lane skips the job without such work, except the first time.
    """


@dataclass(frozen=True, slots=True)
class Lane:
    """Jobs that run one after the other. One run of all of them is a pass."""

    seconds: float
    """The pause between two passes, and before the first one."""

    jobs: Sequence[Job]

    steady: bool = False
    """True if the pause is shorter by the time of the pass before it."""

    within: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
    """Opens a context for each pass."""

    woken: asyncio.Event | None = None
    """Ends a pause when it is set; None if only time ends it."""

    rest: float = 0.0
    """Seconds after a pass that was woken in which `woken` causes no other pass."""

    rests: bool = False
    """True if the pause is `REST` times as long after a pass without work for any look."""


class Jobs:
    """The jobs of this process."""

    def __init__(self, lease: SweepLease) -> None:
        self.lease = lease

        self.times: dict[tuple[str, str], DurationHistogram] = {}
        """Durations of the runs in this process, by job and end (`JOB_ENDS`)."""

        self._tasks = Tasks()
        self._rate_limited = RateLimitedLog(logging.getLogger("agentctl.runs"))

    def start(self, table: Iterable[Lane]) -> None:
        """Run the jobs until `close`."""
        for lane in table:
            jobs = [job for job in lane.jobs if job.run is not None]
            if not jobs:
                continue

            for job in jobs:
                # The metrics show jobs that have not run yet, too.
                for end in JOB_ENDS:
                    self.times[job.name, end] = DurationHistogram(JOB_BUCKETS)
            self._tasks.start(self._run_lane(lane, jobs))

    async def close(self) -> None:
        """Cancel the jobs, and wait for their ends, at most `CLOSE_SECONDS`."""
        await self._tasks.cancel_all(CLOSE_SECONDS)

    async def _run_lane(self, lane: Lane, jobs: Sequence[Job]) -> None:
        clock = asyncio.get_running_loop().time
        woken = lane.woken or asyncio.Event()
        # By the names of jobs that have run: the time from which each is due again.
        due_times = dict[str, float]()
        pause = lane.seconds

        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await woken.wait()

            began = clock()
            rest = lane.rest if woken.is_set() else 0.0
            # Before the pass: work that arrives during it wakes the lane again.
            woken.clear()
            async with lane.within():
                for job in jobs:
                    if self._is_due(job, due_times):
                        due_times[job.name] = clock() + job.seconds
                        if not await self._run(job):
                            # The jobs after it use the same databases.
                            break

            if lane.rests:
                has_work = self.lease.may_find(*Looks._fields)
                pause = lane.seconds if has_work else REST * lane.seconds
            if lane.steady:
                pause = lane.seconds - min(clock() - began, lane.seconds)
            await asyncio.sleep(rest)

    def _is_due(self, job: Job, due_times: Mapping[str, float]) -> bool:
        """Return True if a job has to run in this pass.

        Args:
            due_times: see `_run_lane`.
        """
        if asyncio.get_running_loop().time() < due_times.get(job.name, 0.0):
            return False
        has_run = job.name in due_times
        if job.look and has_run and not self.lease.may_find(job.look):
            return False
        return self.lease.is_held or not job.leased

    async def _run(self, job: Job) -> bool:
        """Run a job once; log a failure and return False."""
        assert job.run is not None
        clock = asyncio.get_running_loop().time
        began = clock()

        end = "failed"
        try:
            await job.run()
            end = "completed"
        except errors.AgentctlError as error:
            self._rate_limited.log("the job %s failed: %s", job.name, error.detail_with_cause)
        except Exception as error:
            self._rate_limited.log("the job %s failed", job.name, cause=error)

        self.times[job.name, end].add(clock() - began)
        return end == "completed"
