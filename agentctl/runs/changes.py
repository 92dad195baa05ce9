"""Hearing that a database was written to, by whichever process.

There is nothing but the database between processes. One poller a database asks it for its change
number every 20 ms while anybody waits (SQLite: `PRAGMA data_version`, some microseconds a look),
and wakes all who do; nobody waits, nobody polls.

How a process hears of cancel requests that another process recorded.

The row is the truth. While this process works on runs it looks whether a database has changed,
and asks for requests then, and every second whatever was heard: who hears of changes may be deaf.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from agentctl import errors
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.runs.engine import Engine
from agentctl.runs.states import cancelled
from agentctl.store.database import Database
from agentctl.store.databases import Databases
from agentctl.store.repositories import runs

__all__ = ["ChangeTracker", "DatabaseChanges", "watch_cancel_requests"]

POLL_SECONDS = 0.02

WATCH_RETRY_SECONDS = 1.0
"""How long the poller leaves a database alone that did not answer it."""


class DatabaseChanges:
    """What is written to the databases of a service, for those who wait for it."""

    def __init__(self) -> None:
        self._pollers: dict[str, _Poller] = {}

    def look(self, database: Database) -> ChangeTracker:
        """A place to wait from. Take it before the first read, so that no write falls between."""
        if database.id not in self._pollers:
            self._pollers[database.id] = _Poller(database)
        return ChangeTracker(self._pollers[database.id])


class ChangeTracker:
    """How much of a database's changes one caller has heard of."""

    def __init__(self, poller: _Poller) -> None:
        self._poller = poller
        self._seen = poller.version()

    def has_changed(self) -> bool:
        """Whether the database has changed since the last time that this was heard of.

        Raises:
            Unavailable: the database does not answer.
        """
        version = self._poller.version()
        moved, self._seen = version != self._seen, version
        return moved

    async def changed(self, timeout: float) -> bool:
        """Like `moved`, waiting up to `timeout` seconds for it."""
        with self._poller.polling(), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    woken = self._poller.woken
                    if self.has_changed():
                        return True
                    await woken.wait()
        return False


class _Poller:
    """Asks one database for its change number while somebody waits."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None
        self.woken = asyncio.Event()

    def version(self) -> int:
        return self._database.changes()

    @contextlib.contextmanager
    def polling(self) -> Iterator[None]:
        """Poll while within."""
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
                # Who waits asks for itself and is told by the failure of that.
                self._wake()
                await asyncio.sleep(WATCH_RETRY_SECONDS)
                continue
            if now != version:
                version = now
                self._wake()

    def _wake(self) -> None:
        self.woken.set()
        self.woken = asyncio.Event()


WATCH_SECONDS = 0.02

QUERY_SECONDS = 1.0
"""The longest time between two questions for requests."""


_complaints = RateLimitedLog(logging.getLogger("agentctl.runs"))


async def watch_cancel_requests(
    engine: Engine, databases: Databases, changes: DatabaseChanges
) -> None:
    """Stop the engine's runs whose cancel was requested elsewhere. Runs until cancelled."""
    looks: dict[str, ChangeTracker] = {}
    asked_at: dict[str, float] = {}
    clock = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        if not engine.live_runs():
            continue
        for database_id, database in databases.opened().items():
            try:
                is_due = clock() - asked_at.get(database_id, 0.0) >= QUERY_SECONDS
                if _has_changed(looks, database, changes) or is_due:
                    asked_at[database_id] = clock()
                    await _stop_cancelled_runs(engine, database)
            except errors.AgentctlError:
                _complaints.make("cancel requests of database %s could not be read", database_id)
                looks.pop(database_id, None)
                await asyncio.sleep(WATCH_RETRY_SECONDS)


def _has_changed(
    looks: dict[str, ChangeTracker], database: Database, changes: DatabaseChanges
) -> bool:
    """Whether there may be requests that have not been heard of: at the first look, always."""
    if database.id in looks:
        return looks[database.id].has_changed()
    looks[database.id] = changes.look(database)
    return True


async def _stop_cancelled_runs(engine: Engine, database: Database) -> None:
    for state in await database.read(runs.list_cancel_requests(engine.worker_id)):
        live = engine.live(state.run_id)
        if live is not None:
            live.stop(cancelled(state.cancel_requested_by or "system", state.cancel_reason))
