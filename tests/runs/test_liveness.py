"""Who is dead, and how that is known."""

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

from agentctl.runs.liveness import DEAD_AFTER_SECONDS, WorkerDeath, WorkerMonitor
from agentctl.runs.process import identify_this_process
from agentctl.runs.worker import Worker
from agentctl.store.databases import Databases
from agentctl.store.repositories import workers
from agentctl.store.repositories.workers import WorkerRow
from tests.loops import wait_until
from tests.runs.rig import Rig, beaten

DEATH = 0.6
"""Silence that is death here, in seconds."""


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def elsewhere(worker_id: str = "far", **given: object) -> WorkerRow:
    """A worker of another machine, of which only the beat is known here."""
    row = WorkerRow(worker_id, "far", "boot/1", 1, 1, beat=1, started_at=1)
    return replace(row, **given)  # type: ignore[arg-type]


@asynccontextmanager
async def beating(databases: Databases) -> AsyncIterator[Worker]:
    """A worker of this process: it shows that the database takes writes."""
    worker = Worker(databases, heartbeat_seconds=0.03)
    await worker.register()
    yield worker
    await worker.unregister()


async def test_who_lives_is_not_dead(rig: Rig) -> None:
    async with rig.open() as databases:
        other = rig.process()
        observer = WorkerMonitor(databases)
        assert await observer.check_owner(other.worker_id) is None
        assert await observer.check_all() == {other.worker_id: None}


async def test_nobody_and_who_has_no_row_are_dead(rig: Rig) -> None:
    async with rig.open() as databases:
        observer = WorkerMonitor(databases)
        assert await observer.check_owner(None) is WorkerDeath.EXITED
        assert await observer.check_owner("unknown") is WorkerDeath.EXITED


async def test_who_was_killed_is_dead_at_once(rig: Rig) -> None:
    async with rig.open() as databases:
        observer = WorkerMonitor(databases)
        for reap in (True, False):
            other = rig.process()
            other.kill(reap=reap)
            if not reap:
                os.waitid(os.P_PID, other.process.pid, os.WEXITED | os.WNOWAIT)
            assert await observer.check_owner(other.worker_id) is WorkerDeath.EXITED


async def test_who_retired_is_dead_and_leaves_nothing(rig: Rig) -> None:
    async with rig.open() as databases:
        other = rig.process()
        other.tell("retire")
        assert other.hear() == "retired"
        assert await WorkerMonitor(databases).check_owner(other.worker_id) is WorkerDeath.EXITED
        assert rig.locks == []


@pytest.mark.parametrize("command", ["fork", "start"])
async def test_a_child_that_outlives_it_does_not_keep_it_alive(rig: Rig, command: str) -> None:
    async with rig.open() as databases:
        other = rig.process()
        other.tell(command)
        child = int(other.hear())
        try:
            other.kill()
            os.kill(child, 0)
            assert await WorkerMonitor(databases).check_owner(other.worker_id) is WorkerDeath.EXITED
        finally:
            os.kill(child, signal.SIGKILL)


async def test_the_lock_tells_of_a_process_whose_pid_says_nothing_here(rig: Rig) -> None:
    """As from another container: the kernel is the same, pids and host name are not."""
    async with rig.open() as databases:
        other = rig.process()
        row = await databases.system.read(workers.get(other.worker_id))
        assert row is not None
        await databases.system.write(workers.remove(row.worker_id))
        far = replace(row, host="container", boot_id="boot/2", pid=1)
        await databases.system.write(workers.register(far))
        observer = WorkerMonitor(databases)
        assert await observer.check_owner(other.worker_id) is None
        other.kill()
        assert await observer.check_owner(other.worker_id) is WorkerDeath.EXITED


async def test_without_a_lock_file_the_pid_tells(rig: Rig) -> None:
    async with rig.open() as databases:
        here = identify_this_process()
        for number, start in (("same", here.process_start), ("reused", here.process_start + 1)):
            row = WorkerRow(number, *here._replace(process_start=start), beat=1, started_at=1)
            await databases.system.write(workers.register(row))
        observer = WorkerMonitor(databases)
        assert await observer.check_owner("same") is None
        assert await observer.check_owner("reused") is WorkerDeath.EXITED


async def test_who_is_stopped_is_silent_and_who_goes_on_is_alive_again(rig: Rig) -> None:
    async with rig.open() as databases, beating(databases):
        observer = WorkerMonitor(databases, dead_after_seconds=DEATH)
        other = rig.process(heartbeat_seconds=0.03)
        await beaten(databases, other.worker_id)
        other.stop()
        began = time.monotonic()
        await wait_until(lambda: _is(observer, other.worker_id, WorkerDeath.NO_HEARTBEAT))
        assert time.monotonic() - began > DEATH * 0.9
        other.go_on()
        await wait_until(lambda: _is(observer, other.worker_id, None))


async def _is(observer: WorkerMonitor, owner: str, death: WorkerDeath | None) -> bool:
    return await observer.check_owner(owner) is death


async def test_silence_is_measured_on_a_clock_of_its_own(rig: Rig) -> None:
    """Whatever the beat says: clocks that differ or jump change nothing."""
    clock = Clock()
    async with rig.open() as databases:
        observer = WorkerMonitor(databases, clock=clock)
        await databases.system.write(workers.register(elsewhere()))
        for beat in (10**18, 5, 7_000_000_000, 6):
            assert await databases.system.write(workers.record_heartbeat("far", beat))
            for _ in range(3):
                assert await observer.check_owner("far") is None
                clock.now += 4
                await _something_written(databases)
        seconds = 0
        while await observer.check_owner("far") is None:
            await _something_written(databases)
            clock.now += 1
            seconds += 1
        assert seconds <= DEAD_AFTER_SECONDS


async def test_an_observer_that_slept_itself_calls_nobody_dead(rig: Rig) -> None:
    clock = Clock()
    async with rig.open() as databases:
        observer = WorkerMonitor(databases, clock=clock)
        await databases.system.write(workers.register(elsewhere()))
        assert await observer.check_all() == {"far": None}
        clock.now += 3600
        await _something_written(databases)
        assert await observer.check_all() == {"far": None}


async def test_while_nobody_can_write_nobody_is_called_dead(rig: Rig) -> None:
    """Silence of all is the database's."""
    clock = Clock()
    async with rig.open() as databases:
        observer = WorkerMonitor(databases, clock=clock)
        await databases.system.write(workers.register(elsewhere()))
        assert await observer.check_all() == {"far": None}
        holder = apsw.Connection(str(rig.folder / "main.db"))
        holder.set_busy_timeout(5_000)
        holder.execute("BEGIN IMMEDIATE")
        for _ in range(60):
            clock.now += 2
            assert await observer.check_all() == {"far": None}
        holder.execute("ROLLBACK")
        holder.close()
        await _something_written(databases)
        assert await observer.check_all() == {"far": None}
        clock.now += 2
        # Its turn has come, and it beats.
        assert await databases.system.write(workers.record_heartbeat("far", 2))
        assert await observer.check_all() == {"far": None}


async def test_what_is_remembered_is_forgotten_with_the_row(rig: Rig) -> None:
    clock = Clock()
    async with rig.open() as databases:
        observer = WorkerMonitor(databases, clock=clock)
        await databases.system.write(workers.register(elsewhere()))
        for _ in range(5):
            await observer.check_all()
            clock.now += 4
            await _something_written(databases)
        assert await observer.check_all() == {"far": WorkerDeath.NO_HEARTBEAT}
        await databases.system.write(workers.remove("far"))
        assert await observer.check_all() == {}
        await databases.system.write(workers.register(elsewhere()))
        assert await observer.check_all() == {"far": None}


async def _something_written(databases: Databases) -> None:
    """What other processes do all the time."""
    await databases.system.write(workers.register(elsewhere("other")))
    await databases.system.write(workers.remove("other"))
    await asyncio.sleep(0)
