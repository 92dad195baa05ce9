"""Notification of writes by other processes, and the watch for their cancel requests.

Processes share only the database. While a caller waits, one poller for each database reads its
change number every 20 ms and wakes all waiting callers. On SQLite a read is `PRAGMA data_version`
and takes some microseconds; the PostgreSQL driver counts notifications.

Cancel requests are read from the rows. While this process executes runs, it queries for requests
when a database has changed, and at least every second in case a notification was lost. A process
without a run and without a waiting caller polls nothing (docs/decisions/0050).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from agentctl import errors
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.runs.engine import Engine
from agentctl.runs.states import Ending
from agentctl.store.database import Database
from agentctl.store.databases import Databases
from agentctl.store.repositories import run_reads

POLL_SECONDS = 0.02

QUERY_SECONDS = 1.0
"""Maximum time between two queries for cancel requests."""

RETRY_SECONDS = 1.0
"""Pause after a database did not answer."""

_rate_limited = RateLimitedLog(logging.getLogger("agentctl.runs"))


class DatabaseChanges:
    """Change notifications for all databases of a service."""

    def __init__(self) -> None:
        self._pollers: dict[str, _Poller] = {}

    def track(self, database: Database) -> ChangeTracker:
        """Return a tracker. Create it before the first read, so that no later write is missed."""
        if database.id not in self._pollers:
            self._pollers[database.id] = _Poller(database)
        return ChangeTracker(self._pollers[database.id])


class ChangeTracker:
    """The position of one caller in the changes of a database."""

    def __init__(self, poller: _Poller) -> None:
        self._poller = poller
        self._seen = poller.version()

    def has_changed(self) -> bool:
        """Return True if the database has changed since the last check.

        Raises:
            Unavailable: the database does not answer.
        """
        version = self._poller.version()
        changed, self._seen = version != self._seen, version
        return changed

    async def wait_for_change(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a change; return False if there was none.

        Raises:
            Unavailable: the database does not answer.
        """
        with self._poller.polling(), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    changed = self._poller.changed
                    if self.has_changed():
                        return True
                    await changed.wait()
        return False


class _Poller:
    """Polls the change number of one database while callers wait."""

    def __init__(self, database: Database) -> None:
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None
        self.version = database.changes
        self.changed = asyncio.Event()

    @contextlib.contextmanager
    def polling(self) -> Iterator[None]:
        if self._task is None:
            self._task = asyncio.create_task(self._poll(self.version()))
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _poll(self, version: int) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                now = self.version()
            except errors.AgentctlError:
                # Wake the callers: their own read raises the error.
                self._notify()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if now != version:
                version = now
                self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


async def watch_cancel_requests(
    engine: Engine, databases: Databases, changes: DatabaseChanges
) -> None:
    """Stop the engine's runs whose cancel another process recorded. Loop until cancelled."""
    trackers: dict[str, ChangeTracker] = {}
    queried_at: dict[str, float] = {}
    clock = asyncio.get_running_loop().time
    while True:
        await engine.wait_for_live_run()
        await asyncio.sleep(POLL_SECONDS)
        for database_id, database in databases.get_open().items():
            try:
                is_due = clock() - queried_at.get(database_id, 0.0) >= QUERY_SECONDS
                tracker = trackers.get(database_id)
                if tracker is None:
                    trackers[database_id] = changes.track(database)
                if tracker is None or tracker.has_changed() or is_due:
                    queried_at[database_id] = clock()
                    await _stop_cancelled_runs(engine, database)
            except errors.AgentctlError:
                _rate_limited.log("cancel requests of database %s could not be read", database_id)
                trackers.pop(database_id, None)
                await asyncio.sleep(RETRY_SECONDS)


async def _stop_cancelled_runs(engine: Engine, database: Database) -> None:
    for state in await database.read(run_reads.list_cancel_requests(engine.worker_id)):
        run = engine.find_run(state.run_id)
        if run is not None:
            run.stop(Ending.cancelled(state.cancel_requested_by or "system", state.cancel_reason))
