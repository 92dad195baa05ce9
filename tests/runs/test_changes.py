"""Notifications about writes of other processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.requests import CancelRequest
from agentctl.runs.life import changes as module
from agentctl.runs.life.changes import DatabaseChanges
from agentctl.store.database import Database
from agentctl.store.repositories import sessions
from tests.conditions import wait_until
from tests.deployment import Deployment
from tests.runs.shared_databases import SharedDatabases
from tests.service.callers import open_service, streamed_run, user
from tests.store.rows import a_session


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
            await operations.cancel_run(
                "agent", "hang", run["run_id"], CancelRequest("s1", wait=30)
            )
            await events
        before = len(polls)
        for _ in range(200):
            await asyncio.sleep(0)
        # The poller may have been in its pause when the run ended.
        assert len(polls) <= before + 1
