"""Sweeps: every process searches for dead workers, and each run is ended once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentctl import errors
from agentctl.runs.jobs.sweep import SWEEP_SECONDS, sweep_dead_workers
from agentctl.runs.workers import worker as worker_module
from agentctl.runs.workers.liveness import WorkerMonitor
from agentctl.runs.workers.worker import SweepLease, Worker
from agentctl.store.databases import Databases
from agentctl.store.repositories import workers
from agentctl.store.repositories.workers import WorkerRow
from agentctl.store.sqlite.database import SqliteDatabase
from tests.kit.conditions import wait_until
from tests.kit.deaths import kill_worker
from tests.runs.quick_jobs import open_service, start_jobs
from tests.runs.shared_databases import (
    SharedDatabases,
    create_live_run,
    list_workers,
    read_run,
    wait_for_heartbeats,
)
from tests.runs.test_liveness import Clock, build_remote_worker

QUICK = 0.03


async def sweep(databases: Databases, own: str = "own") -> list[str]:
    return await sweep_dead_workers(databases, WorkerMonitor(databases), own)


async def lose_worker(databases: Databases, run_id: str = "r1", *places: str) -> str:
    """Let a worker claim a run in some databases (default `main`) and die; return its id."""
    worker = Worker(databases)
    await worker.register()
    for place in places or ("main",):
        await create_live_run(databases[place], worker.id, run_id)
    kill_worker(worker)
    return worker.id


async def test_runs_of_a_killed_worker_are_ended_and_its_row_removed(
    shared: SharedDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    async with shared.open() as databases:
        lost_id = await lose_worker(databases)
        assert shared.lock_names == [f"{lost_id}.lock"]
        assert await sweep(databases) == ["r1"]
        assert (await read_run(databases["main"])).error_code == "WORKER_LOST"
        assert await list_workers(databases) == []
        assert shared.lock_names == []
        assert f"worker {lost_id} is dead (exited); 1 of its runs" in caplog.text
        assert await sweep(databases) == []


async def test_live_workers_and_own_worker_are_kept(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        other = Worker(databases)
        await other.register()
        await create_live_run(databases["main"], other.id)
        worker = Worker(databases)
        await worker.register()
        await create_live_run(databases["main"], worker.id, "mine")
        assert await sweep(databases, worker.id) == []
        assert len(await list_workers(databases)) == len(shared.lock_names) == 2
        # The own worker is not judged, even without a row.
        await databases.system.write(workers.remove(worker.id))
        assert await sweep(databases, worker.id) == []
        await other.unregister()
        await worker.unregister()


async def test_runs_of_an_owner_without_a_row_are_ended(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        await create_live_run(databases["main"], "unknown", "r1")
        await create_live_run(databases["main"], None, "r2")
        await create_live_run(databases["second"], "unknown", "r3")
        assert sorted(await sweep(databases)) == ["r1", "r2", "r3"]


async def test_all_databases_are_swept_before_the_worker_is_removed(
    shared: SharedDatabases,
) -> None:
    async with shared.open() as databases:
        lost_id = await lose_worker(databases, "r1", "main", "second")
    # Only the databases that this process has used are open.
    async with shared.open(create=False, all=False) as databases:
        assert databases.system is databases["main"]
        assert await sweep(databases) == ["r1", "r1"]
        for name in ("main", "second"):
            assert (await read_run(databases[name])).status == "ERROR"
        assert lost_id not in {row.worker_id for row in await list_workers(databases)}


async def test_unavailable_database_keeps_the_worker_row(
    shared: SharedDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    async with shared.open() as databases:
        lost_id = await lose_worker(databases, "r1", "main", "second")
    away = shared.folder / "away.db"
    (shared.folder / "second.db").rename(away)
    async with shared.open(create=False, all=False) as databases:
        monitor = WorkerMonitor(databases)
        assert databases.system.id == "main"
        assert await sweep_dead_workers(databases, monitor, "own") == ["r1"]
        assert await sweep_dead_workers(databases, monitor, "own") == []
        assert "database second could not be recovered" in caplog.text
        assert [row.worker_id for row in await list_workers(databases)] == [lost_id]
        assert shared.lock_names == [f"{lost_id}.lock"]
        away.rename(shared.folder / "second.db")
        assert await sweep_dead_workers(databases, monitor, "own") == ["r1"]
        assert await list_workers(databases) == []


async def test_failing_database_is_logged(
    shared: SharedDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    async with shared.open() as databases:
        await create_live_run(databases["main"], "unknown")
        await databases["second"].close()
        assert await sweep(databases) == ["r1"]
        assert "second could not be read: The database is closed" in caplog.text
        await databases["main"].close()
        with pytest.raises(errors.Unavailable):
            await sweep(databases)


async def test_concurrent_sweeps_end_each_run_once(shared: SharedDatabases) -> None:
    async with shared.open() as one, shared.open() as two:
        names = [f"r{number:02}" for number in range(40)]
        lost_id = await lose_worker(one, names[0])
        for name in names[1:]:
            await create_live_run(one["main"], lost_id, name)
        found = await asyncio.gather(sweep(one, "one"), sweep(two, "two"))
        assert sorted(found[0] + found[1]) == names
        assert {(await read_run(one["main"], name)).attempt for name in names} == {2}
        assert await list_workers(one) == []


async def test_suspended_process_resumes_with_a_new_worker_id(shared: SharedDatabases) -> None:
    """SIGSTOP for longer than the heartbeat limit, then SIGCONT."""
    async with open_service(shared.settings) as service:
        databases = service.hosting.databases
        worker = service._worker
        worker._heartbeat_seconds = QUICK
        await worker.register()
        service.hosting.monitor._dead_after_seconds = 2
        start_jobs(service, QUICK)
        other = shared.start_worker(heartbeat_seconds=QUICK)
        other.send("run r1 main")
        assert other.read_line() == "begun"
        await wait_for_heartbeats(databases, other.worker_id)
        other.stop()
        await wait_until(lambda: _status(databases, "ERROR"))
        await wait_until(lambda: _only(databases, worker))
        ended = await read_run(databases["main"])
        assert (ended.error_code, ended.stopped_at) == ("WORKER_LOST", None)
        other.send("end r1 main")
        other.resume()
        heard = {other.read_line(), other.read_line()}
        assert heard == {"False", f"lost {other.worker_id}"}
        assert await read_run(databases["main"]) == ended
        others = {row.worker_id for row in await list_workers(databases)} - {worker.id}
        assert len(others) == 1
        assert others != {other.worker_id}
        assert len(shared.lock_names) == 2


async def _status(databases: Databases, status: str) -> bool:
    return (await read_run(databases["main"])).status == status


async def _only(databases: Databases, worker: Worker) -> bool:
    return [row.worker_id for row in await list_workers(databases)] == [worker.id]


async def test_jobs_continue_after_any_failure(
    shared: SharedDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_service(shared.settings, create=False) as service, shared.open() as others:
        databases = service.hosting.databases
        times = service.hosting.jobs.times
        # Open the second database, and remove the first one.
        databases["second"]
        (shared.folder / "main.db").rename(shared.folder / "away.db")
        start_jobs(service, 0.005)
        await wait_until(lambda: times["clock", "failed"].count > 2)
        (shared.folder / "away.db").rename(shared.folder / "main.db")
        lost_id = await lose_worker(others)
        await wait_until(lambda: _status(databases, "ERROR"))
        await wait_until(lambda: lost_id not in str(shared.lock_names))
        assert caplog.text.count("the job clock failed: ") == 1
        assert "the job lease" not in caplog.text


async def test_idle_sweep_needs_few_reads(
    shared: SharedDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shared.open() as databases:
        worker = Worker(databases)
        await worker.register()
        monitor = WorkerMonitor(databases)
        for number in range(50):
            await create_live_run(databases["main"], worker.id, f"r{number}")
        reads = 0
        original = SqliteDatabase.read

        async def count_reads(self: SqliteDatabase, *arguments: Any, **options: Any) -> Any:
            nonlocal reads
            reads += 1
            return await original(self, *arguments, **options)

        monkeypatch.setattr(SqliteDatabase, "read", count_reads)
        for _ in range(10):
            assert await sweep_dead_workers(databases, monitor, worker.id) == []
        # A sweep runs every 2 s. Its reads do not depend on the number of runs.
        assert reads <= 10 * 4
        await worker.unregister()


async def test_sweep_of_one_database_reads_nothing_but_its_lease(
    shared: SharedDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shared.open() as databases:
        lost_id = await lose_worker(databases)
    async with shared.open(all=False) as databases:
        worker = Worker(databases)
        await worker.register()
        monitor = WorkerMonitor(databases)
        lease = SweepLease(databases, monitor, worker)
        assert await lease.acquire()
        survey = lease.take_survey()
        assert survey is not None
        assert {row.worker_id for row in survey.workers} == {worker.id, lost_id}
        assert await sweep_dead_workers(databases, monitor, worker.id, survey) == ["r1"]
        await worker.unregister()

    # The end of that run has opened the second database.
    async with shared.open(all=False) as databases:
        worker = Worker(databases)
        await worker.register()
        monitor = WorkerMonitor(databases)
        lease = SweepLease(databases, monitor, worker)
        assert await lease.acquire()
        monkeypatch.delattr(SqliteDatabase, "read")
        survey = lease.take_survey()
        assert survey is not None
        assert await sweep_dead_workers(databases, monitor, worker.id, survey) == []
        assert lease.take_survey() is None
        await worker.unregister()


async def test_survey_does_not_serve_a_sweep_of_several_databases(shared: SharedDatabases) -> None:
    """The owners in the second database are read before the workers: else a new one seems dead."""
    async with shared.open() as databases:
        worker = Worker(databases)
        await worker.register()
        lease = SweepLease(databases, WorkerMonitor(databases), worker)
        databases["second"]
        assert await lease.acquire()
        assert lease.take_survey() is None
        await worker.unregister()


async def test_files_and_rows_of_earlier_boots_are_removed(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        for number in range(2):
            await lose_worker(databases, f"r{number}")
        row = WorkerRow("old", "here", "another boot/1", 1, 1, beat=1, started_at=1)
        await databases.system.write(workers.register(row))
        await sweep(databases)
        assert shared.lock_names == []
        assert [left.worker_id for left in await list_workers(databases)] == ["old"]


async def create_remote_sweeper(databases: Databases, at: int) -> None:
    """Store a sweeper on another machine with a live run, whose last heartbeat was at a time."""
    system = databases.system
    await system.write(workers.register(build_remote_worker(beat=at)))
    await create_live_run(databases["main"], "far")
    assert await system.write(workers.acquire_sweep("far", at))


async def test_dead_sweeper_is_replaced_and_its_run_ended_within_ten_passes(
    shared: SharedDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine stops without a trace: only its heartbeat and its lease show that.

    Each pass is `SWEEP_SECONDS` after the one before, so ten are 20 seconds.
    """
    clock = Clock()
    read_microseconds = lambda: int(clock.now * 1_000_000)  # noqa: E731
    monkeypatch.setattr(worker_module, "now", read_microseconds)
    async with shared.open() as databases:
        system = databases.system
        await create_remote_sweeper(databases, read_microseconds())

        # Without its thread, whose heartbeats would have the times of another clock.
        worker = Worker(databases)
        await system.write(workers.register(worker._build_row(worker.id)))
        monitor = WorkerMonitor(databases, clock=clock)
        lease = SweepLease(databases, monitor, worker)
        held: list[bool] = []
        ended: list[str] = []
        while not ended and len(held) < 10:
            beat = workers.record_heartbeat(worker.id, read_microseconds())
            worker.heartbeat = await system.write(beat)
            worker.beat_at = clock.now
            held.append(await lease.acquire())
            if lease.is_held:
                ended = await sweep_dead_workers(databases, monitor, worker.id)
            clock.now += SWEEP_SECONDS

        assert ended == ["r1"]
        # The lease of a sweeper lasts three passes, so that one slow pass does not lose it.
        assert held.index(True) in (3, 4)
        assert (await read_run(databases["main"])).error_code == "WORKER_LOST"
        assert [row.worker_id for row in await list_workers(databases)] == [worker.id]
