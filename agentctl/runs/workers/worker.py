"""This process as a worker: its row, its lock file, the thread of its heartbeat; and the lease.

The row is written before the first run names the worker as its owner. The heartbeat has its own
thread, so that work that blocks the event loop does not make the process look dead.

The process with the lease sweeps for all processes of a cluster (decision 94). Another
process asks for the lease only if its heartbeat has shown that no process has it, or if it knows
that the process with the lease has exited. Two processes may sweep at once after a pause of one of
them: that costs time, but every change of a sweep is conditional.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from agentctl import errors
from agentctl.records.logs import RateLimitedLog
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.runs.states import SHUTTING_DOWN
from agentctl.runs.workers.liveness import (
    WorkerDeath,
    WorkerLock,
    WorkerMonitor,
    identify_this_process,
)
from agentctl.store.database import Database
from agentctl.store.databases import Databases
from agentctl.store.repositories import workers
from agentctl.store.schema import SCHEMA_VERSION
from agentctl.store.threads import call_in_thread
from agentctl.work.event_loop import Tasks

HEARTBEAT_SECONDS = 3.0
"""Interval of the heartbeat of an idle worker."""

LIVE_SECONDS = 0.75
"""Interval of the heartbeat of a worker with live runs, which reads their cancel requests.

Each request is found within a second without any notification, also if a heartbeat takes 0.2
seconds.
"""

NOTIFIED_SECONDS = 1.0
"""The same interval while notifications of other processes arrive, which report requests at once.

Then only a notification that was lost has to be made up for.
"""

REGISTRATION_WAIT_SECONDS = 10.0
"""Maximum time that `unregister` waits for a registration in progress."""

PERMIT_SECONDS = 5.0
"""Time for which a process may start calls by the halts that it has read or a heartbeat confirms.

Longer than the interval of the heartbeat, so that an idle process starts its next run at once.
"""

_log = logging.getLogger("agentctl.runs")


_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def read_boot_clock() -> float:
    """Return the seconds since the boot of the machine, those of its suspension included."""
    return time.clock_gettime(_BOOT_CLOCK)


class Permit(NamedTuple):
    """The number of the last change of any halt, as a heartbeat has read it."""

    halts_number: int

    at: float
    """The time before the heartbeat, on the clock of `read_boot_clock`."""


def get_live_seconds(database: Database) -> float:
    """Return the time between two reads of the cancel requests of live runs in a database."""
    return NOTIFIED_SECONDS if database.load().is_notified else LIVE_SECONDS


class Worker:
    """A process that executes runs. Belongs to the event loop that registers it.

    Args:
        on_lost: called on the event loop with an id whose runs this process must stop: other
            processes declared the worker dead, which is already registered under a new id.
        has_live_runs: returns True while the process executes runs; called by the thread.
    """

    def __init__(
        self,
        databases: Databases,
        *,
        on_lost: Callable[[str], None] | None = None,
        has_live_runs: Callable[[], bool] = lambda: False,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._databases = databases
        self.on_lost = on_lost
        self._has_live_runs = has_live_runs
        self._heartbeat_seconds = heartbeat_seconds

        self.heartbeat: workers.Heartbeat | None = None
        """The last stored heartbeat, a new object each time; None before the first one."""

        self.beat_at = 0.0
        """The time after which it was stored, in seconds on the monotonic clock."""

        self.permit: Permit | None = None
        """The number of the last change of halts that it has read; None before the first one."""

        self.alive_at = float("-inf")
        """The time before the last write of its row, on the clock of `read_boot_clock`."""

        self.versions: str | None = None
        """The versions of the components of a server; set before `register`."""

        self.id = new_id()
        """The owner of new runs. It changes when the worker was declared dead."""

        self._lock: WorkerLock | None = None
        self._tasks = Tasks()
        self._registration: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._rate_limited = RateLimitedLog(_log)

    @property
    def registered_id(self) -> str | None:
        """The id of the row of the worker; None before it is written."""
        return None if self._thread is None else self.id

    async def register(self) -> str:
        """Take the lock, write the row and start the heartbeat, unless that is done already.

        Safe to call at the same time from several tasks: they share one registration.

        Returns:
            The id of the worker.

        Raises:
            Unavailable: the database does not accept the row, or the process shuts down.
        """
        if self._thread is not None:
            return self.id
        if self._ended.is_set():
            raise errors.Unavailable(SHUTTING_DOWN)

        if self._registration is None or self._registration.done():
            self._registration = self._tasks.start(self._register())
        await asyncio.shield(self._registration)
        return self.id

    async def _register(self) -> None:
        database = self._databases.system
        lock = _acquire_lock(database, self.id)
        alive_at = read_boot_clock()
        try:
            await database.write(workers.register(self._build_row(self.id)))
        except BaseException:
            _remove_lock(lock)
            # The outcome may be unknown. If the row exists, it dies without a heartbeat; the id is
            # not used again.
            self.id = new_id()
            raise

        self._lock = lock
        self.alive_at = alive_at
        self._thread = threading.Thread(
            target=self._send_heartbeats,
            args=(asyncio.get_running_loop(), database),
            name="agentctl-heartbeat",
            daemon=True,
        )
        self._thread.start()

    def _build_row(self, worker_id: str) -> workers.WorkerRow:
        process = identify_this_process()
        at = now()
        return workers.WorkerRow(
            worker_id,
            *process,
            beat=at,
            started_at=at,
            schema_version=SCHEMA_VERSION,
            versions=self.versions,
        )

    def _send_heartbeats(self, loop: asyncio.AbstractEventLoop, database: Database) -> None:
        """Store heartbeats until the worker ends: the body of its thread."""
        while self._wait_until_due(database):
            try:
                started = time.monotonic()
                booted = read_boot_clock()
                heartbeat = database.write_blocking(workers.record_heartbeat(self.id, now()))
                if heartbeat is None:
                    self._register_again(loop, database)
                else:
                    self.heartbeat = heartbeat
                    self.beat_at = started
                    self.permit = Permit(heartbeat.halts_number, booted)
                    self.alive_at = booted
            except errors.AgentctlError as error:
                self._rate_limited.log("the heartbeat could not be written: %s", error.detail)
            except Exception as error:
                self._rate_limited.log("the heartbeat failed", cause=error)

    def _wait_until_due(self, database: Database) -> bool:
        """Wait until a heartbeat is due. Return False if the worker ends."""
        remaining_seconds = self._heartbeat_seconds
        while remaining_seconds > 0:
            pause = min(remaining_seconds, get_live_seconds(database))
            if self._ended.wait(pause):
                return False
            # A run may have started during the wait.
            if self._has_live_runs():
                return True
            remaining_seconds -= pause
        return True

    def _register_again(self, loop: asyncio.AbstractEventLoop, database: Database) -> None:
        """Continue under a new id: another process has removed the row of this worker.

        The runs of the old id may have been ended, so their owner must not write them any more.
        """
        old_id = self.id
        worker_id = new_id()
        lock = _acquire_lock(database, worker_id)
        alive_at = read_boot_clock()
        try:
            database.write_blocking(workers.register(self._build_row(worker_id)))
        except BaseException:
            _remove_lock(lock)
            raise

        _remove_lock(self._lock)
        self.id = worker_id
        self._lock = lock
        self.alive_at = alive_at
        _log.warning("worker %s was declared dead; it continues as %s", old_id, worker_id)
        self._report_lost(loop, old_id)

    def _report_lost(self, loop: asyncio.AbstractEventLoop, worker_id: str) -> None:
        if self.on_lost is not None:
            # A closed event loop has no runs any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self.on_lost, worker_id)

    async def unregister(self) -> None:
        """Stop the heartbeat and remove the row and the lock file; the worker ends for good.

        If the database does not answer, the row stays and the unlocked file shows other processes
        that the worker has ended.
        """
        self._ended.set()
        await self._tasks.wait_until_empty(REGISTRATION_WAIT_SECONDS)
        thread = self._thread
        self._thread = None
        if thread is None:
            return

        # Before the row is removed: a later heartbeat would register the worker again.
        await call_in_thread(thread.join)
        try:
            await self._databases.system.write(workers.remove(self.id))
        except errors.AgentctlError as error:
            _log.warning("the row of worker %s could not be removed: %s", self.id, error.detail)
            if self._lock is not None:
                self._lock.release()
        else:
            _remove_lock(self._lock)
        self._lock = None


def _acquire_lock(database: Database, worker_id: str) -> WorkerLock | None:
    """Return the lock, or None without a lock: then the pid and the heartbeat show life."""
    if database.lock_folder is None:
        return None
    try:
        return WorkerLock.acquire(database.lock_folder, worker_id)
    except OSError as error:
        _log.warning("worker %s has no lock file: %s", worker_id, error.strerror)
        return None


def _remove_lock(lock: WorkerLock | None) -> None:
    if lock is not None:
        lock.remove()


EXTEND_SECONDS = workers.LEASE_SECONDS / 3
"""Time between two extensions during a long sweep."""


class SweepLease:
    """The lease of the sweep, for one process.

    Args:
        monitor: recognizes processes of this machine that have exited.
    """

    def __init__(self, databases: Databases, monitor: WorkerMonitor, worker: Worker) -> None:
        self._databases = databases
        self._monitor = monitor
        self._worker = worker
        self.is_held = False
        """True if this process has the lease, by the last answer of the database."""

        self.looks: workers.Looks | None = None
        """The work that this answer and the answers of the other open databases have found.

        None without the lease, or without an answer.
        """

        self._survey: workers.Survey | None = None

    def may_find(self, *looks: str) -> bool:
        """Return True unless the last answer has found no work for any of some looks.

        Args:
            looks: names of fields of `Looks`.
        """
        if self.looks is None:
            return True
        return any(getattr(self.looks, look) for look in looks)

    async def acquire(self) -> bool:
        """Take or extend the lease if it is free. Return True if this process has it.

        Raises:
            Unavailable: the system database does not answer.
        """
        self._monitor.observe(self._worker.heartbeat, self._worker.beat_at)
        system = self._databases.system
        heartbeat = self._worker.heartbeat

        sweeper: str | None = None
        if not self.is_held:
            # The heartbeat has read it, so that a process without the lease makes no statement.
            if heartbeat is None:
                sweeper = await system.read(workers.get_sweeper(now()))
            else:
                sweeper = heartbeat.sweeper

        exited_sweeper: str | None = None
        if sweeper is not None and sweeper != self._worker.id:
            if await self._monitor.check_exit(sweeper) is not WorkerDeath.EXITED:
                return False
            exited_sweeper = sweeper

        # Before the heartbeats are read, so that one that arrives in between is seen.
        self._monitor.advance_clock()
        acquire = workers.acquire_sweep(self._worker.id, now(), exited=exited_sweeper)
        survey = await system.write(acquire)
        self._survey = survey
        self.is_held = survey is not None
        self.looks = None
        if survey is not None:
            self.looks = await self._look(survey.looks)

        if heartbeat is not None and not self.may_find("workers"):
            # No other worker has a row: the sweep that would read its heartbeat is left out.
            self._monitor.oldest_heartbeat = heartbeat.beat
        return self.is_held

    def take_survey(self) -> workers.Survey | None:
        """Return the survey of the last answer, once; None if a sweep has to read for itself.

        With several databases it has to: the owners of runs are read before the workers.
        """
        survey = self._survey
        self._survey = None
        if len(self._databases.get_open()) != 1:
            return None
        return survey

    async def _look(self, system_looks: workers.Looks) -> workers.Looks | None:
        """Return the work that any database has; None if one does not answer."""
        looks = system_looks
        for database in self._databases.get_open().values():
            if database is self._databases.system:
                continue

            try:
                other_looks = await database.read(workers.look(self._worker.id, now()))
            except errors.AgentctlError:
                return None
            looks = workers.Looks(*map(any, zip(looks, other_looks, strict=True)))

        return looks

    @contextlib.asynccontextmanager
    async def extended(self) -> AsyncIterator[None]:
        """Extend the lease while the body of the context executes, which may take long."""
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
