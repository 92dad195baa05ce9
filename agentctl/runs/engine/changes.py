"""Notification of writes by other processes, and the watch for their cancels and messages.

Processes share only the database. While a caller waits, one poller for each database reads the
change numbers every 20 ms and wakes the callers that a change concerns. On SQLite a read is `PRAGMA
data_version`, takes some microseconds and concerns all callers; the PostgreSQL driver counts the
notifications of each run and of each worker.

Cancel requests, and messages to runs, are read from the rows. While this process executes runs,
it queries for them when it is notified. In case a notification was lost, the heartbeat of the
worker asks for them in the system database, and databases without a heartbeat are asked as often. A
process without a run and without a waiting caller polls nothing (decision 94), except for
runs that any server may claim: a serving process is notified, and compares a number every 0.5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from agentctl import errors
from agentctl.records.logs import RateLimitedLog
from agentctl.runs.engine.claims import LegClaims
from agentctl.runs.engine.engine import Engine
from agentctl.runs.gate.halts import Halts
from agentctl.runs.log.hub import Hub, StateReads, StoredEvents
from agentctl.runs.states import Ending
from agentctl.runs.workers.worker import Worker, get_live_seconds
from agentctl.store.database import LEGS_TOPIC, Database, worker_topic
from agentctl.store.databases import Databases
from agentctl.store.repositories import run_reads
from agentctl.store.repositories.workers import Heartbeat

POLL_SECONDS = 0.02
"""Interval of the checks of the change numbers, which cost no statement."""

LEGS_SECONDS = 0.5
"""Maximum time between two checks for runs that any server may claim.

SQLite files need it: they notify of nothing.
"""

LEGS_PAUSE_SECONDS = 0.1
"""Time after a notification in which further notifications cause no check."""

RETRY_SECONDS = 1.0
"""Pause after a database did not answer."""

_rate_limited = RateLimitedLog(logging.getLogger("agentctl.runs"))


class DatabaseChanges:
    """Change notifications for all databases of a service."""

    def __init__(self) -> None:
        self._pollers: dict[str, _Poller] = {}
        self.hub = Hub()
        self.stored = StoredEvents()
        self.states = StateReads()

    def track(
        self, database: Database, topic: str, notify: Callable[[], None] | None = None
    ) -> ChangeTracker:
        """Return a tracker. Create it before the first read, so that no later write is missed.

        Args:
            topic: `run_topic` or `worker_topic`; writes that do not concern it may be left out.
            notify: called after each notification, from any thread; None without a call.
        """
        if database.id not in self._pollers:
            self._pollers[database.id] = _Poller()
        return ChangeTracker(self._pollers[database.id], database.watch(topic, notify))


class ChangeTracker:
    """The position of one caller in the changes of a database."""

    def __init__(self, poller: _Poller, version: Callable[[], int]) -> None:
        self._poller = poller
        self._version = version
        self._seen_version = version()

    def has_changed(self) -> bool:
        """Return True if the database has changed since the last check."""
        version = self._version()
        has_changed = version != self._seen_version
        self._seen_version = version
        return has_changed

    async def wait_for_change(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a change; return False if there was none."""
        with self._poller.polling(self._version) as waiters, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    # Before the check: a change after it sets this event.
                    changed = waiters.changed
                    if self.has_changed():
                        return True
                    await changed.wait()
        return False


class _Waiters:
    """The callers that wait for the same changes."""

    def __init__(self, seen_version: int) -> None:
        self.count = 0
        """Number of these callers."""

        self.seen_version = seen_version
        """The last change number."""

        self.changed = asyncio.Event()
        """Set at the next change; then it is replaced."""

    def notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class _Poller:
    """Polls the change numbers of one database while callers wait."""

    def __init__(self) -> None:
        self._waiters: dict[Callable[[], int], _Waiters] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def polling(self, version: Callable[[], int]) -> Iterator[_Waiters]:
        """Poll while the block lasts. Equal functions share their waiters."""
        waiters = self._waiters.get(version)
        if waiters is None:
            waiters = _Waiters(version())
            self._waiters[version] = waiters
        waiters.count += 1
        if self._task is None:
            self._task = asyncio.create_task(self._poll())

        try:
            yield waiters
        finally:
            waiters.count -= 1
            if not waiters.count:
                del self._waiters[version]

            # The last caller of all stops the polls.
            if not self._waiters and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                for version, waiters in list(self._waiters.items()):
                    present_version = version()
                    if present_version != waiters.seen_version:
                        waiters.seen_version = present_version
                        waiters.notify()
            except errors.AgentctlError:
                # Wake the callers: their own read raises the error.
                for waiters in list(self._waiters.values()):
                    waiters.notify()
                await asyncio.sleep(RETRY_SECONDS)


async def watch_cancel_requests(
    engine: Engine, worker: Worker, databases: Databases, changes: DatabaseChanges, halts: Halts
) -> None:
    """Carry out what other processes record for the engine's runs: cancels, and messages to them.

    Loop until cancelled. The heartbeat reads the requests in the system database, every
    `LIVE_SECONDS` of `runs.workers.worker`. Another database is queried as often, and each one
    after a notification. It follows the changes of halts as well.
    """
    trackers: dict[str, tuple[str, ChangeTracker]] = {}
    queried_at: dict[str, float] = {}
    clock = asyncio.get_running_loop().time
    heartbeat: Heartbeat | None = None
    is_watching = False

    while True:
        await engine.wait_for_live_run()
        await asyncio.sleep(POLL_SECONDS)
        try:
            if not is_watching:
                halts.watch()
                is_watching = True
            await halts.observe()
        except errors.AgentctlError:
            # Nothing starts without the halts, and the heartbeat shows a change as well.
            _rate_limited.log("the halts could not be read")

        for database_id, database in databases.get_open().items():
            try:
                is_due = False
                if database is not databases.system:
                    pause = get_live_seconds(database)
                    is_due = clock() - queried_at.get(database_id, 0.0) >= pause
                elif worker.heartbeat is not heartbeat:
                    heartbeat = worker.heartbeat
                    is_due = heartbeat is not None and heartbeat.has_requests

                worker_id, tracker = trackers.get(database_id, ("", None))
                if worker_id != engine.worker_id:
                    # The first time, or this worker was declared dead and has a new id.
                    topic = worker_topic(engine.worker_id)
                    trackers[database_id] = (engine.worker_id, changes.track(database, topic))
                    is_due = True

                if is_due or (tracker is not None and tracker.has_changed()):
                    queried_at[database_id] = clock()
                    await _read_requests(engine, database)
            except errors.AgentctlError:
                # The requests that were not read: query everything again.
                heartbeat = None
                _rate_limited.log("cancel requests of database %s could not be read", database_id)
                trackers.pop(database_id, None)
                await asyncio.sleep(RETRY_SECONDS)


async def _read_requests(engine: Engine, database: Database) -> None:
    """Stop the cancelled runs of this process, and tell its runs of messages that wait for them."""
    for state in await database.read(run_reads.list_worker_requests(engine.worker_id)):
        run = engine.find_run(state.run_id)
        if run is None:
            continue

        if state.cancel_requested_at is not None:
            run.stop(Ending.requested(state))
        else:
            run.note_messages()


class LegWatch:
    """The watch for runs that other processes let begin."""

    def __init__(
        self, claims: LegClaims, databases: Databases, changes: DatabaseChanges, halts: Halts
    ) -> None:
        self.notified = asyncio.Event()
        """Set when a database has notified of such a run, or of a change of halts."""

        self._halts = halts
        self._is_watching = False
        self._claims = claims
        self._databases = databases
        self._changes = changes
        self._trackers: dict[str, ChangeTracker] = {}

    async def observe_halts(self) -> None:
        """Read the halts again if they may have changed, and confirm them."""
        if not self._is_watching:
            self._halts.watch(self.notified.set)
            self._is_watching = True
        await self._halts.observe()

    async def claim_changed(self) -> None:
        """Claim soon what waits in the databases that have changed. Failures are logged."""
        trackers = self._trackers
        for database_id, database in self._databases.get_open().items():
            try:
                if database_id not in trackers:
                    notify = self.notified.set
                    trackers[database_id] = self._changes.track(database, LEGS_TOPIC, notify)
                elif trackers[database_id].has_changed():
                    self._claims.wake(database)
            except errors.AgentctlError:
                _rate_limited.log("changes of database %s could not be read", database_id)
                trackers.pop(database_id, None)
