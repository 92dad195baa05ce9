"""Detection of dead workers."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import apsw
import pytest

from agentctl.runs.workers.liveness import (
    DEAD_AFTER_SECONDS,
    WorkerDeath,
    WorkerMonitor,
    identify_this_process,
)
from agentctl.runs.workers.worker import Worker
from agentctl.store.databases import Databases
from agentctl.store.repositories import workers
from agentctl.store.repositories.workers import Heartbeat, WorkerRow
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deaths import kill_worker
from tests.kit.process_states import is_alive
from tests.runs.shared_databases import SharedDatabases, wait_for_heartbeats

DEATH = 0.6
"""Seconds without a heartbeat after which a worker is dead in these tests."""


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def build_remote_worker(worker_id: str = "far", **given: object) -> WorkerRow:
    """Build the row of a worker on another machine, of which only the heartbeat is visible."""
    row = WorkerRow(worker_id, "far", "boot/1", 1, 1, beat=1, started_at=1)
    return replace(row, **given)  # type: ignore[arg-type]


@asynccontextmanager
async def register_worker(databases: Databases) -> AsyncIterator[Worker]:
    """Register a worker of this process; its heartbeats show that the database accepts writes."""
    worker = Worker(databases, heartbeat_seconds=0.03)
    await worker.register()
    yield worker
    await worker.unregister()


async def test_missing_owner_and_worker_without_row_are_dead(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        monitor = WorkerMonitor(databases)
        assert await monitor.check_owner(None) is WorkerDeath.EXITED
        assert await monitor.check_owner("unknown") is WorkerDeath.EXITED


async def test_worker_is_alive_until_it_is_killed(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        monitor = WorkerMonitor(databases)
        other = shared.start_worker()
        assert await monitor.check_owner(other.worker_id) is None
        assert await monitor.check_all() == {other.worker_id: None}
        other.kill()
        assert await monitor.check_owner(other.worker_id) is WorkerDeath.EXITED


async def test_killed_worker_is_dead_although_its_parent_does_not_reap_it(
    shared: SharedDatabases,
) -> None:
    async with shared.open() as databases:
        monitor = WorkerMonitor(databases)
        other = shared.start_worker(is_child=True)
        other.process.kill()
        os.waitid(os.P_PID, other.process.pid, os.WEXITED | os.WNOWAIT)
        assert await monitor.check_owner(other.worker_id) is WorkerDeath.EXITED


async def test_unregistered_worker_is_dead_and_leaves_no_lock(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        worker = Worker(databases)
        worker_id = await worker.register()
        await worker.unregister()
        assert await WorkerMonitor(databases).check_owner(worker_id) is WorkerDeath.EXITED
        assert shared.lock_names == []


@pytest.mark.parametrize("command", ["fork", "start"])
async def test_surviving_child_does_not_keep_its_worker_alive(
    shared: SharedDatabases, command: str
) -> None:
    async with shared.open() as databases:
        other = shared.start_worker()
        other.send(command)
        child = int(other.read_line())
        try:
            other.kill()
            assert is_alive(child)
            assert await WorkerMonitor(databases).check_owner(other.worker_id) is WorkerDeath.EXITED
        finally:
            os.kill(child, signal.SIGKILL)


async def test_free_lock_shows_death_of_a_process_in_another_container(
    shared: SharedDatabases,
) -> None:
    """Simulate another container: the same kernel, other pids and another host name."""
    async with shared.open() as databases:
        # A heartbeat would find that its row is missing, and give the worker another id.
        other = Worker(databases, heartbeat_seconds=4 * PATIENCE)
        await other.register()
        row = await databases.system.read(workers.get(other.id))
        assert row is not None
        await databases.system.write(workers.remove(row.worker_id))
        far = replace(row, host="container", boot_id="boot/2", pid=1)
        await databases.system.write(workers.register(far))
        monitor = WorkerMonitor(databases)
        assert await monitor.check_owner(other.id) is None
        kill_worker(other)
        assert await monitor.check_owner(other.id) is WorkerDeath.EXITED


async def test_pid_decides_without_a_lock_file(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        here = identify_this_process()
        for number, start in (("same", here.process_start), ("reused", here.process_start + 1)):
            row = WorkerRow(number, *here._replace(process_start=start), beat=1, started_at=1)
            await databases.system.write(workers.register(row))
        monitor = WorkerMonitor(databases)
        assert await monitor.check_owner("same") is None
        assert await monitor.check_owner("reused") is WorkerDeath.EXITED


async def test_suspended_worker_has_no_heartbeat_until_it_resumes(shared: SharedDatabases) -> None:
    async with shared.open() as databases, register_worker(databases):
        monitor = WorkerMonitor(databases, dead_after_seconds=DEATH)
        other = shared.start_worker(heartbeat_seconds=0.03)
        await wait_for_heartbeats(databases, other.worker_id)
        other.stop()
        began = time.monotonic()
        await wait_until(lambda: _is_judged(monitor, other.worker_id, WorkerDeath.NO_HEARTBEAT))
        assert time.monotonic() - began > DEATH * 0.9
        other.resume()
        await wait_until(lambda: _is_judged(monitor, other.worker_id, None))


async def _is_judged(monitor: WorkerMonitor, owner: str, death: WorkerDeath | None) -> bool:
    return await monitor.check_owner(owner) is death


async def test_monitor_measures_heartbeats_on_its_own_clock(shared: SharedDatabases) -> None:
    """Clocks that differ or jump have no effect, for any value of the heartbeat."""
    clock = Clock()
    async with shared.open() as databases:
        monitor = WorkerMonitor(databases, clock=clock)
        await databases.system.write(workers.register(build_remote_worker()))
        for beat in (10**18, 5, 7_000_000_000, 6):
            assert await databases.system.write(workers.record_heartbeat("far", beat))
            for _ in range(3):
                assert await monitor.check_owner("far") is None
                clock.now += 4
                await _write_something(databases)
        seconds = 0
        while await monitor.check_owner("far") is None:
            await _write_something(databases)
            clock.now += 1
            seconds += 1
        assert seconds <= DEAD_AFTER_SECONDS


async def test_suspended_monitor_declares_no_worker_dead(shared: SharedDatabases) -> None:
    clock = Clock()
    async with shared.open() as databases:
        monitor = WorkerMonitor(databases, clock=clock)
        await databases.system.write(workers.register(build_remote_worker()))
        assert await monitor.check_all() == {"far": None}
        clock.now += 3600
        await _write_something(databases)
        assert await monitor.check_all() == {"far": None}


async def test_locked_database_makes_no_worker_dead(shared: SharedDatabases) -> None:
    """If no worker has a heartbeat, the database is the cause."""
    clock = Clock()
    async with shared.open() as databases:
        monitor = WorkerMonitor(databases, clock=clock)
        await databases.system.write(workers.register(build_remote_worker()))
        assert await monitor.check_all() == {"far": None}
        holder = apsw.Connection(str(shared.folder / "main.db"))
        holder.set_busy_timeout(5_000)
        holder.execute("BEGIN IMMEDIATE")
        for _ in range(60):
            clock.now += 2
            assert await monitor.check_all() == {"far": None}
        holder.execute("ROLLBACK")
        holder.close()
        await _write_something(databases)
        assert await monitor.check_all() == {"far": None}
        clock.now += 2
        # The lock is free again, and the worker writes its heartbeat.
        assert await databases.system.write(workers.record_heartbeat("far", 2))
        assert await monitor.check_all() == {"far": None}


async def test_monitor_forgets_workers_without_a_row(shared: SharedDatabases) -> None:
    clock = Clock()
    async with shared.open() as databases:
        monitor = WorkerMonitor(databases, clock=clock)
        await databases.system.write(workers.register(build_remote_worker()))
        for _ in range(5):
            await monitor.check_all()
            clock.now += 4
            await _write_something(databases)
        assert await monitor.check_all() == {"far": WorkerDeath.NO_HEARTBEAT}
        await databases.system.write(workers.remove("far"))
        assert await monitor.check_all() == {}
        await databases.system.write(workers.register(build_remote_worker()))
        assert await monitor.check_all() == {"far": None}


async def _write_something(databases: Databases) -> None:
    """Write like other processes do all the time."""
    await databases.system.write(workers.register(build_remote_worker("other")))
    await databases.system.write(workers.remove("other"))
    await asyncio.sleep(0)


async def test_new_observer_knows_the_age_of_heartbeats_from_its_own(
    shared: SharedDatabases,
) -> None:
    """A process that begins to sweep has not seen the heartbeats of others before."""
    clock = Clock()
    async with shared.open() as databases:
        monitor = WorkerMonitor(databases, clock=clock)
        second = 1_000_000
        for name, beat in (("gone", 100 * second), ("here", 119 * second)):
            row = build_remote_worker(name, beat=beat)
            await databases.system.write(workers.register(row))
        for seconds in range(100, 121, 3):
            await _write_something(databases)
            monitor.observe(Heartbeat(seconds * second, False, False, None), clock.now)
            clock.now += 3
        assert await monitor.check_all() == {"gone": WorkerDeath.NO_HEARTBEAT, "here": None}


async def test_outage_before_a_sweep_makes_no_worker_dead(shared: SharedDatabases) -> None:
    """The own heartbeats of the process show that the database was away for an hour."""
    clock = Clock()
    async with shared.open() as databases:
        monitor = WorkerMonitor(databases, clock=clock)
        row = build_remote_worker("far", beat=100_000_000)
        await databases.system.write(workers.register(row))
        for beat in (100_000_000, 3_700_000_000):
            await _write_something(databases)
            monitor.observe(Heartbeat(beat, False, False, None), clock.now)
            clock.now += 3_600
        assert await monitor.check_all() == {"far": None}
