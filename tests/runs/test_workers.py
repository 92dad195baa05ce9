"""Workers: registration, lock file, heartbeat and end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import apsw
import pytest

from agentctl import errors
from agentctl.runs.workers.liveness import identify_this_process
from agentctl.runs.workers.worker import HEARTBEAT_SECONDS, Worker
from agentctl.store.database import Load
from agentctl.store.repositories import workers
from tests.kit.conditions import PATIENCE, wait_until
from tests.runs.shared_databases import SharedDatabases, list_workers, wait_for_heartbeats

QUICK = 0.02


async def test_row_identifies_the_process_and_lock_is_taken(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        worker = Worker(databases)
        before = worker.id
        assert await list_workers(databases) == []
        await worker.register()
        await worker.register()
        (row,) = await list_workers(databases)
        assert row.worker_id == worker.id == before
        assert (row.host, row.boot_id, row.pid, row.process_start) == identify_this_process()
        assert abs(row.beat / 1e6 - time.time()) < 60
        assert row.started_at == row.beat
        assert shared.lock_names == [f"{worker.id}.lock"]
        await worker.unregister()
        assert await list_workers(databases) == []
        assert shared.lock_names == []


async def test_concurrent_registrations_create_one_worker(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        worker = Worker(databases)
        await asyncio.gather(*(worker.register() for _ in range(20)))
        assert len(await list_workers(databases)) == len(shared.lock_names) == 1
        await worker.unregister()


async def test_cancelled_caller_does_not_interrupt_registration(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        worker = Worker(databases)
        caller = asyncio.create_task(worker.register())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await worker.register()
        assert [row.worker_id for row in await list_workers(databases)] == [worker.id]
        await worker.unregister()
        assert shared.lock_names == []


async def test_registration_succeeds_after_a_failure_and_leaves_no_lock(
    shared: SharedDatabases,
) -> None:
    async with shared.open(create=False, all=False) as databases:
        worker = Worker(databases)
        with pytest.raises(errors.Unavailable):
            await worker.register()
        assert shared.lock_names == []
        async with shared.open():
            await worker.register()
        assert [row.worker_id for row in await list_workers(databases)] == [worker.id]
        await worker.unregister()


async def test_failed_registration_leaves_no_lock_and_changes_the_id(
    shared: SharedDatabases,
) -> None:
    async with shared.open() as databases:
        worker = Worker(databases)
        first = worker.id
        another = workers.WorkerRow(first, "elsewhere", "boot", 1, 1, 1, 1)
        await databases.system.write(workers.register(another))
        with pytest.raises(errors.AgentctlError):
            await worker.register()
        assert shared.lock_names == []
        await worker.register()
        assert worker.id != first
        assert shared.lock_names == [f"{worker.id}.lock"]
        await worker.unregister()


async def test_worker_without_lock_folder_registers(
    shared: SharedDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    (shared.folder / "main.db.workers").write_text("in the way")
    async with shared.open() as databases:
        worker = Worker(databases)
        await worker.register()
        assert len(await list_workers(databases)) == 1
        assert "has no lock file" in caplog.text
        await worker.unregister()
        assert await list_workers(databases) == []


async def test_heartbeat_continues_while_the_event_loop_is_blocked(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        worker = Worker(databases, heartbeat_seconds=QUICK)
        await worker.register()
        await wait_for_heartbeats(databases, worker.id)
        before = (await list_workers(databases))[0].beat
        # Block the event loop: only the heartbeat thread can write meanwhile.
        other = apsw.Connection(str(shared.folder / "main.db"))
        deadline = time.monotonic() + PATIENCE
        while other.execute("SELECT beat FROM workers").fetchall()[0][0] <= before + 200_000:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        other.close()
        await worker.unregister()


async def test_heartbeat_waits_for_a_locked_database_with_few_log_lines(
    shared: SharedDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    async with shared.open() as databases:
        worker = Worker(databases, heartbeat_seconds=QUICK)
        await worker.register()
        other = apsw.Connection(str(shared.folder / "main.db"))
        other.set_busy_timeout(5_000)
        other.execute("BEGIN IMMEDIATE")
        with caplog.at_level(logging.WARNING):
            await wait_until(lambda: "heartbeat could not be written" in caplog.text)
        other.execute("ROLLBACK")
        other.close()
        await wait_for_heartbeats(databases, worker.id, 2)
        assert worker.id in {row.worker_id for row in await list_workers(databases)}
        await worker.unregister()


async def test_unavailable_database_is_logged_once(
    shared: SharedDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    async with shared.open() as databases:
        worker = Worker(databases, heartbeat_seconds=0.001)
        await worker.register()
        await databases.system.close()
        await wait_until(lambda: "heartbeat could not be written" in caplog.text)
        caplog.clear()
        await asyncio.sleep(0.1)
        assert caplog.records == []
        await worker.unregister()
        assert "could not be removed" in caplog.text
    # The free lock shows the other processes that the worker has ended.
    assert shared.lock_names == [f"{worker.id}.lock"]


async def test_unregister_does_not_wait_for_the_next_heartbeat(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        worker = Worker(databases, heartbeat_seconds=4 * PATIENCE)
        await worker.register()
        async with asyncio.timeout(PATIENCE):
            await worker.unregister()
        await worker.unregister()
        with pytest.raises(errors.Unavailable):
            await worker.register()


async def test_unregister_without_registration_writes_nothing(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        await Worker(databases).unregister()
        assert shared.lock_names == []
        assert await list_workers(databases) == []


async def test_removed_worker_continues_with_a_new_id(shared: SharedDatabases) -> None:
    lost: list[str] = []
    async with shared.open() as databases:
        worker = Worker(databases, on_lost=lost.append, heartbeat_seconds=QUICK)
        await worker.register()
        old = worker.id
        assert await databases.system.write(workers.remove(old))
        await wait_until(lambda: lost)
        assert lost == [old]
        assert worker.id != old
        assert [row.worker_id for row in await list_workers(databases)] == [worker.id]
        assert shared.lock_names == [f"{worker.id}.lock"]
        await wait_for_heartbeats(databases, worker.id)
        await worker.unregister()
        assert shared.lock_names == []
        assert await list_workers(databases) == []
        assert lost == [old]


class CountedPauses:
    """Stands for the event that ends a heartbeat: it is never set, and counts the seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wait(self, timeout: float) -> bool:
        self.seconds += timeout
        return False


class NotifiedDatabase:
    """Stands for a database with or without notifications."""

    def __init__(self, *, is_notified: bool | None) -> None:
        self._is_notified = is_notified

    def load(self) -> Load:
        return Load("postgres", 0, 0, 4, self._is_notified)


def count_seconds_to_heartbeat(
    is_live: Callable[[float], bool], *, is_notified: bool | None = None
) -> float:
    """Return the seconds until the next heartbeat.

    Args:
        is_live: called with the seconds that have passed; True if the process executes a run then.
        is_notified: see `Load`.
    """
    pauses: Any = CountedPauses()
    databases: Any = None
    database: Any = NotifiedDatabase(is_notified=is_notified)
    worker = Worker(databases, has_live_runs=lambda: is_live(pauses.seconds))
    worker._ended = pauses
    assert worker._wait_until_due(database)
    return float(pauses.seconds)


@pytest.mark.parametrize("is_notified", [True, False, None])
def test_heartbeat_is_due_every_second_while_a_run_is_live(is_notified: bool | None) -> None:
    """It shows a cancel by another server whose notification was lost (security cases, R16)."""

    def count(is_live: Callable[[float], bool]) -> float:
        return count_seconds_to_heartbeat(is_live, is_notified=is_notified)

    assert count(lambda seconds: False) == HEARTBEAT_SECONDS
    assert count(lambda seconds: True) <= 1
    begun = 1.0
    assert count(lambda seconds: seconds >= begun) <= begun + 1


def test_heartbeat_comes_earlier_while_no_notifications_arrive() -> None:
    """A request is found within a second, also if a heartbeat takes 0.2 seconds."""
    assert count_seconds_to_heartbeat(lambda seconds: True, is_notified=True) == 1
    for is_notified in (False, None):
        assert count_seconds_to_heartbeat(lambda seconds: True, is_notified=is_notified) <= 0.8
