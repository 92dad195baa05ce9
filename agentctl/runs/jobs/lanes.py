"""The jobs of a server: how one is declared, and the one loop that runs them.

The table of jobs is in `service/jobs.py`. Jobs of one lane run one after the other, in the order of
the table; a job that fails ends the pass of its lane, because the next ones use the same databases.
Lanes run at the same time, so that a long job delays no other lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import product

from agentctl import errors
from agentctl.records.logs import RateLimitedLog
from agentctl.records.times import DurationHistogram
from agentctl.runs.workers.worker import SweepLease
from agentctl.store.repositories.workers import Looks
from agentctl.work.event_loop import Tasks

JOB_BUCKETS = (0.1, 1.0, 10.0)
"""Bounds of the histogram of the durations of jobs, in seconds."""

CLOSE_SECONDS = 5.0
"""Maximum time that the end of a server waits for its jobs, which may wait for a disk or a database
that does not respond."""

JOB_ENDS = ("completed", "failed")


@dataclass(frozen=True, slots=True)
class Job:
    """Work that a server does again and again.

    Attributes:
        name: the name in the metrics and in the log.
        run: does the work that is due, and bounds its own time. None if there is no such work.
        leased: True if only the process with the lease of the sweep does it.
        seconds: time between two runs, if it is longer than that of the lane.
        look: the field of `Looks` that shows its work; a lane skips the job without such work,
            except the first time. "" for none.
    """

    name: str
    run: Callable[[], Awaitable[object]] | None
    leased: bool = False
    seconds: float = 0.0
    look: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """Jobs that run one after the other.

    Attributes:
        seconds: the pause between two passes, and before the first one.
        steady: True if the pause is shorter by the time of the pass before it.
        within: opens a context for each pass.
        woken: ends a pause when it is set; None for nothing.
        rest: seconds after a pass that was woken in which `woken` causes no other one.
        rests: True if the pause is twice as long after a pass without work for any look.
    """

    seconds: float
    jobs: Sequence[Job]
    steady: bool = False
    within: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
    woken: asyncio.Event | None = None
    rest: float = 0.0
    rests: bool = False


class Jobs:
    """The jobs of this process.

    Attributes:
        times: durations of the runs in this process, by job and end.
    """

    def __init__(self, lease: SweepLease) -> None:
        self.lease = lease
        self.times: dict[tuple[str, str], DurationHistogram] = {}
        self._tasks = Tasks()
        self._rate_limited = RateLimitedLog(logging.getLogger("agentctl.runs"))

    def start(self, table: Iterable[Lane]) -> None:
        """Run the jobs until `close`."""
        for lane in table:
            if jobs := [job for job in lane.jobs if job.run is not None]:
                for name, end in product([job.name for job in jobs], JOB_ENDS):
                    self.times[name, end] = DurationHistogram(JOB_BUCKETS)
                self._tasks.start(self._run_lane(lane, jobs))

    async def close(self) -> None:
        """Cancel the jobs, and wait for their ends, at most `CLOSE_SECONDS`."""
        await self._tasks.cancel_all(CLOSE_SECONDS)

    async def _run_lane(self, lane: Lane, jobs: Sequence[Job]) -> None:
        clock = asyncio.get_running_loop().time
        woken = lane.woken or asyncio.Event()
        due = dict[str, float]()
        pause = lane.seconds
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await woken.wait()
            began = clock()
            rest = lane.rest if woken.is_set() else 0.0
            woken.clear()
            async with lane.within():
                for job in jobs:
                    is_due = clock() >= due.get(job.name, 0.0)
                    if is_due and job.look and job.name in due:
                        is_due = self.lease.may_find(job.look)
                    if is_due and (self.lease.is_held or not job.leased):
                        due[job.name] = clock() + job.seconds
                        if not await self._run(job):
                            break
            if lane.rests:
                pause = lane.seconds * (1 if self.lease.may_find(*Looks._fields) else 2)
            if lane.steady:
                pause = lane.seconds - min(clock() - began, lane.seconds)
            await asyncio.sleep(rest)

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
