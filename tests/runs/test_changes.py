"""Notifications about writes of other processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from agentctl import errors
from agentctl.interface.requests import CancelRequest
from agentctl.runs.engine import changes as module
from agentctl.runs.engine.changes import DatabaseChanges, watch_cancel_requests
from agentctl.runs.states import Ending
from agentctl.store.database import Database
from agentctl.store.databases import Databases
from agentctl.store.repositories import runs, sessions
from agentctl.store.repositories.workers import Heartbeat
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.kit.rows import a_session
from tests.kit.service import open_service, streamed_run, user
from tests.runs.shared_databases import SharedDatabases, create_live_run


@contextlib.asynccontextmanager
async def two_processes(
    shared: SharedDatabases,
) -> AsyncIterator[tuple[DatabaseChanges, Database, Database]]:
    """Open one file as two processes; yield the notifications of the first one."""
    async with shared.open() as ours, shared.open() as theirs:
        yield DatabaseChanges(), ours["main"], theirs["main"]


async def write(database: Database, name: str = "s1") -> None:
    await database.write(sessions.create(a_session(name)))


async def start_waiting(*waits: Coroutine[Any, Any, bool]) -> asyncio.Future[Any]:
    """Start waits of one tracked database, and return once its poller works."""
    before = len(asyncio.all_tasks())
    tasks = [asyncio.create_task(wait) for wait in waits]
    await wait_until(lambda: len(asyncio.all_tasks()) == before + len(waits) + 1)
    return tasks[0] if len(tasks) == 1 else asyncio.gather(*tasks)


async def test_write_of_another_process_wakes_waiter(shared: SharedDatabases) -> None:
    async with two_processes(shared) as (changes, ours, theirs):
        tracker = changes.track(ours, "run r")
        waiting = await start_waiting(tracker.wait_for_change(60))
        await write(theirs)
        # A wait that ends at its time limit returns False.
        assert await waiting


async def test_write_before_the_wait_is_not_missed(shared: SharedDatabases) -> None:
    async with two_processes(shared) as (changes, ours, theirs):
        tracker = changes.track(ours, "run r")
        await write(theirs)
        assert await tracker.wait_for_change(10)
        assert not await tracker.wait_for_change(0.05)


async def test_one_poller_wakes_all_waiters(shared: SharedDatabases) -> None:
    async with two_processes(shared) as (changes, ours, theirs):
        trackers = [changes.track(ours, "run r") for _ in range(50)]
        before = len(asyncio.all_tasks())
        waiting = await start_waiting(*(tracker.wait_for_change(60) for tracker in trackers))
        await write(theirs)
        assert all(await waiting)
        await wait_until(lambda: len(asyncio.all_tasks()) == before)


async def test_cancelled_wait_stops_the_poller(shared: SharedDatabases) -> None:
    async with two_processes(shared) as (changes, ours, _):
        waiting = await start_waiting(changes.track(ours, "run r").wait_for_change(60))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await wait_until(lambda: len(asyncio.all_tasks()) == 1)


async def test_unavailable_database_raises_for_waiters(
    shared: SharedDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    async with two_processes(shared) as (changes, ours, _):
        waiting = await start_waiting(changes.track(ours, "run r").wait_for_change(60))
        await ours.close()
        with pytest.raises(errors.Unavailable):
            await waiting


async def test_service_polls_only_while_a_run_is_live(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count the polls of an idle service whose pollers do not pause."""
    monkeypatch.setattr(module, "POLL_SECONDS", 0)
    async with open_service(deployment) as service:
        operations = user(service)
        database = service.hosting.databases["main"]
        polls = list[int]()
        changes = database.changes

        def count() -> int:
            polls.append(1)
            return changes()

        monkeypatch.setattr(database, "changes", count)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            events,
        ):
            await wait_until(lambda: len(polls) > 10)
            await operations.runs.cancel(
                "agent", "hang", run["run_id"], CancelRequest("s1", wait=30)
            )
            await events
        before = len(polls)
        for _ in range(200):
            await asyncio.sleep(0)
        # The poller may have been in its pause when the run ended.
        assert len(polls) <= before + 1


class WatchedRun:
    """The engine and the worker of a process with one live run, and the watch for its cancel.

    The watch makes no pauses, and its clock stands until the test moves it.

    Attributes:
        now: seconds on the clock of the watch.
        turns: turns of the watch that have begun; each looks at all databases.
        queries: ids of the databases that were asked for cancel requests.
        endings: how the run was told to end.
    """

    def __init__(self, databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worker_id = "w1"
        self.heartbeat: Heartbeat | None = None
        self.now = 1_000.0
        self.turns = 0
        self.queries: list[str] = []
        self.endings: list[Ending] = []
        self._databases = databases
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(module, "POLL_SECONDS", 0)
        read_requests = module._read_requests

        async def count(engine: Any, database: Database) -> None:
            # Servers that other tests share watch in threads of this process.
            if engine is self:
                self.queries.append(database.id)
            await read_requests(engine, database)

        monkeypatch.setattr(module, "_read_requests", count)

    async def wait_for_live_run(self) -> None:
        self.turns += 1

    def find_run(self, run_id: str) -> Any:
        assert run_id == "r1"
        return SimpleNamespace(stop=self.endings.append)

    @contextlib.asynccontextmanager
    async def watching(self, changes: DatabaseChanges) -> AsyncIterator[None]:
        """Watch, from the end of the queries that every watch begins with."""
        this: Any = self
        # No halt changes.
        halts: Any = SimpleNamespace(watch=lambda: None, observe=AsyncMock())
        watch = watch_cancel_requests(this, this, self._databases, changes, halts)
        with self._monkeypatch.context() as patched:
            # Only the watch reads its clock now: the timers of the loop keep theirs.
            patched.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
            task = asyncio.create_task(watch)
            await asyncio.sleep(0)
        try:
            await self.wait_for_turns(2)
            assert self.queries == ["main", "second"]
            self.queries.clear()
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def wait_for_turns(self, turns: int) -> None:
        """Return when so many turns have begun and ended."""
        last = self.turns + turns
        await wait_until(lambda: self.turns > last)

    async def is_stopped_within(self, turns: int) -> bool:
        last = self.turns + turns
        await wait_until(lambda: bool(self.endings) or self.turns > last)
        return bool(self.endings)


async def request_cancel(database: Database) -> None:
    """Request the cancel of the run, as another process does."""
    await database.write(runs.request_cancel("r1", 5, "boss", "enough"))


@pytest.mark.parametrize("name", ["main", "second"])
async def test_cancel_by_another_process_is_found_in_the_next_turn(
    shared: SharedDatabases, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """security case R16: a turn begins every `POLL_SECONDS`, some times a second."""
    assert 10 * module.POLL_SECONDS <= 1
    async with shared.open() as ours, shared.open() as theirs:
        await create_live_run(ours[name], "w1")
        watched = WatchedRun(ours, monkeypatch)
        async with watched.watching(DatabaseChanges()):
            await request_cancel(theirs[name])
            # The turn that has begun may have looked at the database before.
            assert await watched.is_stopped_within(2)
        (ending,) = watched.endings
        assert ending == Ending.cancelled("boss", "enough")
        assert watched.queries == [name]


def notify_of_nothing(topic: str, notify: object = None) -> Callable[[], int]:
    """A `Database.watch` whose notifications are all lost."""
    return lambda: 0


async def test_lost_notification_delays_a_cancel_by_a_second(
    shared: SharedDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database without a heartbeat is asked before a second has passed, and once is enough."""
    async with shared.open() as ours, shared.open() as theirs:
        await create_live_run(ours["second"], "w1")
        monkeypatch.setattr(ours["second"], "watch", notify_of_nothing)
        watched = WatchedRun(ours, monkeypatch)
        async with watched.watching(DatabaseChanges()):
            await request_cancel(theirs["second"])
            await watched.wait_for_turns(20)
            assert (watched.endings, watched.queries) == ([], [])
            watched.now += 1
            assert await watched.is_stopped_within(2)
            assert watched.queries == ["second"]
            await watched.wait_for_turns(20)
            assert watched.queries == ["second"]


async def test_heartbeat_shows_a_cancel_whose_notification_was_lost(
    shared: SharedDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shared.open() as ours, shared.open() as theirs:
        await create_live_run(ours["main"], "w1")
        monkeypatch.setattr(ours["main"], "watch", notify_of_nothing)
        monkeypatch.setattr(ours["second"], "watch", notify_of_nothing)
        watched = WatchedRun(ours, monkeypatch)
        async with watched.watching(DatabaseChanges()):
            await request_cancel(theirs["main"])
            watched.heartbeat = Heartbeat(1, False, False, None)
            await watched.wait_for_turns(20)
            assert (watched.endings, watched.queries) == ([], [])
            watched.heartbeat = Heartbeat(2, True, False, None)
            assert await watched.is_stopped_within(2)
            await watched.wait_for_turns(20)
            assert watched.queries == ["main"]
