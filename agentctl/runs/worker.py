"""This process as a worker: its row, its lock, and the thread that says that it lives.

The row stands before the first run names it as its owner. The beat is a thread's, so that work
that blocks the event loop does not make the process look dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from agentctl import errors
from agentctl.records.ids import new_id
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.records.times import now
from agentctl.runs.process import WorkerLock, identify_this_process
from agentctl.runs.tasks import Tasks
from agentctl.store.database import Database
from agentctl.store.databases import Databases
from agentctl.store.repositories import workers

__all__ = ["HEARTBEAT_SECONDS", "Worker"]

HEARTBEAT_SECONDS = 3.0
"""How often a worker says that it lives (design.md "Workers")."""

REGISTRATION_WAIT_SECONDS = 10.0
"""How long the end of a process waits for an enlistment that is under way."""

_log = logging.getLogger("agentctl.runs")


class Worker:
    """One process that runs work. Belongs to the event loop that enlists it.

    Args:
        databases: the first of them holds the row.
        lost: see below.
        beat_seconds: time between two beats.

    Attributes:
        lost: called on the event loop with the old id when the process was taken for dead: others
            have ended its runs. By then it is enlisted anew.
    """

    def __init__(
        self,
        databases: Databases,
        *,
        lost: Callable[[str], None] | None = None,
        beat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._databases = databases
        self.lost = lost
        self._beat_seconds = beat_seconds
        self._id = new_id()
        self._lock: WorkerLock | None = None
        self._tasks = Tasks()
        self._enlisting: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._complaints = RateLimitedLog(_log)

    @property
    def id(self) -> str:
        """What runs name as their owner. It is another one after a loss."""
        return self._id

    async def enlist(self) -> None:
        """Take the lock, write the row and begin to beat, unless that was done.

        Raises:
            Unavailable: the database does not take the row, or the process is to end.
        """
        if self._thread is not None:
            return
        if self._ended.is_set():
            raise errors.Unavailable("The server is shutting down")
        if self._enlisting is None or self._enlisting.done():
            self._enlisting = self._tasks.start(self._register())
        await asyncio.shield(self._enlisting)

    async def _register(self) -> None:
        database = self._databases.system
        lock = _take_lock(database, self._id)
        try:
            await database.write(workers.register(_build_row(self._id)))
        except BaseException:
            _remove_lock(lock)
            # Nobody knows whether the row is there: it is nobody's now, and dies of silence.
            self._id = new_id()
            raise
        self._lock = lock
        self._thread = threading.Thread(
            target=self._send_heartbeats,
            args=(asyncio.get_running_loop(), database),
            name="agentctl-beat",
            daemon=True,
        )
        self._thread.start()

    def _send_heartbeats(self, loop: asyncio.AbstractEventLoop, database: Database) -> None:
        """The thread. Whatever goes wrong, it goes on."""
        while not self._ended.wait(self._beat_seconds):
            try:
                if not database.write_blocking(workers.record_heartbeat(self._id, now())):
                    self._register_again(loop, database)
            except errors.AgentctlError as error:
                self._complaints.make("the worker's beat was not taken: %s", error.detail)
            except Exception as error:
                self._complaints.make("the worker's beat failed", cause=error)

    def _register_again(self, loop: asyncio.AbstractEventLoop, database: Database) -> None:
        old, new = self._id, new_id()
        lock = _take_lock(database, new)
        try:
            database.write_blocking(workers.register(_build_row(new)))
        except BaseException:
            _remove_lock(lock)
            raise
        _remove_lock(self._lock)
        self._id, self._lock = new, lock
        _log.warning("worker %s was taken for dead; it goes on as %s", old, new)
        if self.lost is not None:
            # A loop that is closed has no runs any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self.lost, old)

    async def retire(self) -> None:
        """Stop beating and remove the row and the lock; it is not enlisted again.

        A database that does not answer keeps the row; the lock is free then, so that others know.
        """
        self._ended.set()
        await self._tasks.done(REGISTRATION_WAIT_SECONDS)
        thread, self._thread = self._thread, None
        if thread is None:
            return
        await asyncio.to_thread(thread.join)
        try:
            await self._databases.system.write(workers.remove(self._id))
        except errors.AgentctlError as error:
            _log.warning("the row of worker %s could not be removed: %s", self._id, error.detail)
            if self._lock is not None:
                self._lock.release()
        else:
            _remove_lock(self._lock)
        self._lock = None


def _build_row(worker_id: str) -> workers.WorkerRow:
    process = identify_this_process()
    at = now()
    return workers.WorkerRow(worker_id, *process, beat=at, started_at=at)


def _take_lock(database: Database, worker_id: str) -> WorkerLock | None:
    """The lock, or None where none can be had: then the pid and the beat have to tell."""
    if database.lock_folder is None:
        return None
    try:
        return WorkerLock.take(database.lock_folder, worker_id)
    except OSError as error:
        _log.warning("worker %s has no lock file: %s", worker_id, error.strerror)
        return None


def _remove_lock(lock: WorkerLock | None) -> None:
    if lock is not None:
        lock.remove()
