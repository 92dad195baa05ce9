"""Sweeps: every process looks for dead workers, and each run is ended once."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack

import pytest

from agentctl import errors
from agentctl.runs.liveness import WorkerMonitor
from agentctl.runs.sweep import sweep_dead_workers, watch_workers
from agentctl.runs.worker import Worker
from agentctl.store.databases import Databases
from agentctl.store.repositories import workers
from agentctl.store.repositories.workers import WorkerRow
from tests.loops import wait_until
from tests.runs.rig import Rig, WorkerProcess, a_live_run, beaten, stored, the_workers

QUICK = 0.03


async def swept(databases: Databases, own: str = "own") -> list[str]:
    return await sweep_dead_workers(databases, WorkerMonitor(databases), own)


async def killed_with_a_run(rig: Rig, run_id: str = "r1", *places: str) -> WorkerProcess:
    """A worker that began a run in each of some databases (`main`) and was killed."""
    other = rig.process()
    for place in places or ("main",):
        other.tell(f"run {run_id} {place}")
        assert other.hear() == "begun"
    other.kill()
    return other


async def test_the_runs_of_a_killed_process_are_ended_and_it_is_buried(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig.open() as databases:
        other = await killed_with_a_run(rig)
        assert rig.locks == [f"{other.worker_id}.lock"]
        assert await swept(databases) == ["r1"]
        assert (await stored(databases["main"])).error_code == "WORKER_LOST"
        assert await the_workers(databases) == []
        assert rig.locks == []
        assert f"worker {other.worker_id} is dead (exited); 1 of its runs" in caplog.text
        assert await swept(databases) == []


async def test_the_living_and_oneself_are_left_alone(rig: Rig) -> None:
    async with rig.open() as databases:
        other = rig.process()
        other.tell("run r1 main")
        assert other.hear() == "begun"
        worker = Worker(databases)
        await worker.register()
        await a_live_run(databases["main"], worker.id, "mine")
        assert await swept(databases, worker.id) == []
        assert len(await the_workers(databases)) == len(rig.locks) == 2
        # What is not judged is left alone, even without a row.
        await databases.system.write(workers.remove(worker.id))
        assert await swept(databases, worker.id) == []
        await worker.unregister()


async def test_runs_of_an_owner_without_a_row_are_ended(rig: Rig) -> None:
    async with rig.open() as databases:
        await a_live_run(databases["main"], "unknown", "r1")
        await a_live_run(databases["main"], None, "r2")
        await a_live_run(databases["second"], "unknown", "r3")
        assert sorted(await swept(databases)) == ["r1", "r2", "r3"]


async def test_every_database_is_swept_before_the_worker_is_buried(rig: Rig) -> None:
    async with rig.open():
        other = await killed_with_a_run(rig, "r1", "main", "second")
    # Opened only as far as this process has needed them.
    async with rig.open(create=False, all=False) as databases:
        assert databases.system is databases["main"]
        assert await swept(databases) == ["r1", "r1"]
        for name in ("main", "second"):
            assert (await stored(databases[name])).status == "ERROR"
        assert other.worker_id not in {row.worker_id for row in await the_workers(databases)}


async def test_a_database_that_is_away_keeps_the_row_and_not_the_others(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig.open():
        other = await killed_with_a_run(rig, "r1", "main", "second")
    away = rig.folder / "away.db"
    (rig.folder / "second.db").rename(away)
    async with rig.open(create=False, all=False) as databases:
        observer = WorkerMonitor(databases)
        assert databases.system.id == "main"
        assert await sweep_dead_workers(databases, observer, "own") == ["r1"]
        assert await sweep_dead_workers(databases, observer, "own") == []
        assert "database second could not be recovered" in caplog.text
        assert [row.worker_id for row in await the_workers(databases)] == [other.worker_id]
        assert rig.locks == [f"{other.worker_id}.lock"]
        away.rename(rig.folder / "second.db")
        assert await sweep_dead_workers(databases, observer, "own") == ["r1"]
        assert await the_workers(databases) == []


async def test_a_database_that_stops_to_answer_is_only_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig.open() as databases:
        await a_live_run(databases["main"], "unknown")
        await databases["second"].close()
        assert await swept(databases) == ["r1"]
        assert "second could not be read: The database is closed" in caplog.text
        await databases["main"].close()
        with pytest.raises(errors.Unavailable):
            await swept(databases)


async def test_of_two_that_sweep_at_once_one_ends_each_run(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as two:
        names = [f"r{number:02}" for number in range(40)]
        other = rig.process()
        for name in names:
            await a_live_run(one["main"], other.worker_id, name)
        other.kill()
        found = await asyncio.gather(swept(one, "one"), swept(two, "two"))
        assert sorted(found[0] + found[1]) == names
        assert {(await stored(one["main"], name)).attempt for name in names} == {2}
        assert await the_workers(one) == []


async def test_a_stopped_process_that_goes_on_finds_its_runs_ended_and_is_another(
    rig: Rig,
) -> None:
    """A zombie: SIGSTOP for longer than silence may last, then SIGCONT."""
    async with rig.open() as databases, AsyncExitStack() as stack:
        worker = Worker(databases, heartbeat_seconds=QUICK)
        await worker.register()
        stack.push_async_callback(worker.unregister)
        observer = WorkerMonitor(databases, dead_after_seconds=0.6)
        watch = asyncio.create_task(watch_workers(databases, observer, worker, sweep_seconds=QUICK))
        stack.callback(watch.cancel)
        other = rig.process(heartbeat_seconds=QUICK)
        other.tell("run r1 main")
        assert other.hear() == "begun"
        await beaten(databases, other.worker_id)
        other.stop()
        await wait_until(lambda: _status(databases, "ERROR"))
        await wait_until(lambda: _only(databases, worker))
        ended = await stored(databases["main"])
        assert (ended.error_code, ended.stopped_at) == ("WORKER_LOST", None)
        other.tell("end r1 main")
        other.go_on()
        heard = {other.hear(), other.hear()}
        assert heard == {"False", f"lost {other.worker_id}"}
        assert await stored(databases["main"]) == ended
        others = {row.worker_id for row in await the_workers(databases)} - {worker.id}
        assert len(others) == 1
        assert others != {other.worker_id}
        assert len(rig.locks) == 2


async def _status(databases: Databases, status: str) -> bool:
    return (await stored(databases["main"])).status == status


async def _only(databases: Databases, worker: Worker) -> bool:
    return [row.worker_id for row in await the_workers(databases)] == [worker.id]


async def test_the_watch_goes_on_whatever_happens(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig.open(create=False, all=False) as databases:
        worker = Worker(databases)
        options = {"sweep_seconds": 0.005, "cleanup_seconds": 0.005}
        observer = WorkerMonitor(databases)
        watch = asyncio.create_task(watch_workers(databases, observer, worker, **options))
        try:
            async with rig.open():
                # A second one that is there for it to open, and the first one gone.
                databases["second"]
                (rig.folder / "main.db").rename(rig.folder / "away.db")
                await wait_until(lambda: "the sweep for dead workers failed" in caplog.text)
                (rig.folder / "away.db").rename(rig.folder / "main.db")
                other = await killed_with_a_run(rig)
                await wait_until(lambda: _status(databases, "ERROR"))
                await wait_until(lambda: other.worker_id not in str(rig.locks))
                lines = [line for line in caplog.text.splitlines() if "looked for" in line]
                assert len(lines) == 1
                assert not watch.done()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


async def test_a_sweep_with_nothing_to_do_is_a_few_point_reads(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig.open() as databases:
        worker = Worker(databases)
        await worker.register()
        observer = WorkerMonitor(databases)
        for number in range(50):
            await a_live_run(databases["main"], worker.id, f"r{number}")
        times = []
        for _ in range(50):
            began = time.perf_counter()
            assert await sweep_dead_workers(databases, observer, worker.id) == []
            times.append(time.perf_counter() - began)
        caplog.set_level(logging.INFO)
        logging.getLogger("tests").info("sweep: %.0f us", sorted(times)[25] * 1e6)
        # Every 2 s: a share of the process that nobody notices, with much room for a slow machine.
        assert sorted(times)[25] < 0.02
        await worker.unregister()


async def test_files_and_rows_of_old_boots_do_not_pile_up(rig: Rig) -> None:
    async with rig.open() as databases:
        for number in range(5):
            await killed_with_a_run(rig, f"r{number}")
        row = WorkerRow("old", "here", "another boot/1", 1, 1, beat=1, started_at=1)
        await databases.system.write(workers.register(row))
        await swept(databases)
        assert rig.locks == []
        assert [left.worker_id for left in await the_workers(databases)] == ["old"]
