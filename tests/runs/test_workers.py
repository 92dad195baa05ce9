"""A process as a worker: its row, its lock, its beat, its end."""

from __future__ import annotations

import asyncio
import logging
import time

import apsw
import pytest

from agentctl import errors
from agentctl.runs.process import identify_this_process
from agentctl.runs.worker import Worker
from agentctl.store.repositories import workers
from tests.loops import wait_until
from tests.runs.rig import Rig, beaten, the_workers

QUICK = 0.02


async def test_the_row_says_which_process_it_is_and_the_lock_is_held(rig: Rig) -> None:
    async with rig.open() as databases:
        worker = Worker(databases)
        before = worker.id
        assert await the_workers(databases) == []
        await worker.register()
        await worker.register()
        (row,) = await the_workers(databases)
        assert row.worker_id == worker.id == before
        assert (row.host, row.boot_id, row.pid, row.process_start) == identify_this_process()
        assert abs(row.beat / 1e6 - time.time()) < 60
        assert row.started_at == row.beat
        assert rig.locks == [f"{worker.id}.lock"]
        await worker.unregister()
        assert await the_workers(databases) == []
        assert rig.locks == []


async def test_many_that_enlist_at_once_make_one_worker(rig: Rig) -> None:
    async with rig.open() as databases:
        worker = Worker(databases)
        await asyncio.gather(*(worker.register() for _ in range(20)))
        assert len(await the_workers(databases)) == len(rig.locks) == 1
        await worker.unregister()


async def test_a_caller_that_leaves_does_not_tear_it_apart(rig: Rig) -> None:
    async with rig.open() as databases:
        worker = Worker(databases)
        caller = asyncio.create_task(worker.register())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await worker.register()
        assert [row.worker_id for row in await the_workers(databases)] == [worker.id]
        await worker.unregister()
        assert rig.locks == []


async def test_who_could_not_enlist_can_later_and_leaves_no_lock(rig: Rig) -> None:
    async with rig.open(create=False, all=False) as databases:
        worker = Worker(databases)
        with pytest.raises(errors.Unavailable):
            await worker.register()
        assert rig.locks == []
        async with rig.open():
            await worker.register()
        assert [row.worker_id for row in await the_workers(databases)] == [worker.id]
        await worker.unregister()


async def test_a_row_that_was_not_taken_leaves_no_lock_and_its_id_is_not_used_again(
    rig: Rig,
) -> None:
    async with rig.open() as databases:
        worker = Worker(databases)
        first = worker.id
        another = workers.WorkerRow(first, "elsewhere", "boot", 1, 1, 1, 1)
        await databases.system.write(workers.register(another))
        with pytest.raises(errors.AgentctlError):
            await worker.register()
        assert rig.locks == []
        await worker.register()
        assert worker.id != first
        assert rig.locks == [f"{worker.id}.lock"]
        await worker.unregister()


async def test_without_a_place_for_locks_it_works_without(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    (rig.folder / "main.db.workers").write_text("in the way")
    async with rig.open() as databases:
        worker = Worker(databases)
        await worker.register()
        assert len(await the_workers(databases)) == 1
        assert "has no lock file" in caplog.text
        await worker.unregister()
        assert await the_workers(databases) == []


async def test_it_beats_while_the_event_loop_is_blocked(rig: Rig) -> None:
    async with rig.open() as databases:
        worker = Worker(databases, heartbeat_seconds=QUICK)
        await worker.register()
        await beaten(databases, worker.id)
        before = (await the_workers(databases))[0].beat
        # Blocks the event loop: only the thread of the worker can write meanwhile.
        other, deadline = apsw.Connection(str(rig.folder / "main.db")), time.monotonic() + 10
        while other.execute("SELECT beat FROM workers").fetchall()[0][0] <= before + 200_000:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        other.close()
        await worker.unregister()


async def test_a_locked_database_is_waited_for_with_few_words(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig.open() as databases:
        worker = Worker(databases, heartbeat_seconds=QUICK)
        await worker.register()
        other = apsw.Connection(str(rig.folder / "main.db"))
        other.set_busy_timeout(5_000)
        other.execute("BEGIN IMMEDIATE")
        with caplog.at_level(logging.WARNING):
            await wait_until(lambda: "heartbeat could not be written" in caplog.text, 20)
        other.execute("ROLLBACK")
        other.close()
        await beaten(databases, worker.id, 2)
        assert worker.id in {row.worker_id for row in await the_workers(databases)}
        await worker.unregister()


async def test_a_database_that_is_away_is_complained_of_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig.open() as databases:
        worker = Worker(databases, heartbeat_seconds=0.001)
        await worker.register()
        await databases.system.close()
        await wait_until(lambda: "heartbeat could not be written" in caplog.text)
        caplog.clear()
        await asyncio.sleep(0.1)
        assert caplog.records == []
        await worker.unregister()
        assert "could not be removed" in caplog.text
    # The lock tells the others.
    assert rig.locks == [f"{worker.id}.lock"]


async def test_the_end_does_not_wait_for_the_next_beat(rig: Rig) -> None:
    async with rig.open() as databases:
        worker = Worker(databases, heartbeat_seconds=600)
        await worker.register()
        began = time.monotonic()
        await worker.unregister()
        assert time.monotonic() - began < 2
        await worker.unregister()
        with pytest.raises(errors.Unavailable):
            await worker.register()


async def test_who_never_enlisted_writes_nothing(rig: Rig) -> None:
    async with rig.open() as databases:
        await Worker(databases).unregister()
        assert rig.locks == []
        assert await the_workers(databases) == []


async def test_who_was_buried_goes_on_as_another(rig: Rig) -> None:
    lost: list[str] = []
    async with rig.open() as databases:
        worker = Worker(databases, on_lost=lost.append, heartbeat_seconds=QUICK)
        await worker.register()
        old = worker.id
        assert await databases.system.write(workers.remove(old))
        await wait_until(lambda: lost)
        assert lost == [old]
        assert worker.id != old
        assert [row.worker_id for row in await the_workers(databases)] == [worker.id]
        assert rig.locks == [f"{worker.id}.lock"]
        await beaten(databases, worker.id)
        await worker.unregister()
        assert rig.locks == []
        assert await the_workers(databases) == []
        assert lost == [old]
