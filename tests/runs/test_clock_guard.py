"""A wrong clock deletes nothing (R49)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agentctl.config.settings import Audit
from agentctl.interface.requests.administration import AuditFilter
from agentctl.records.times import now
from agentctl.runs.jobs.cleanup import ClockGuard
from agentctl.runs.workers.liveness import WorkerLock
from agentctl.store.repositories import audit, events
from agentctl.store.repositories.audit import AuditRow
from tests.kit.command import shift_clock
from tests.kit.conditions import wait_until
from tests.runs.quick_jobs import open_service, start_jobs
from tests.runs.shared_databases import SharedDatabases
from tests.runs.test_cleanup import create_ended_run

MINUTE = 60_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NO_FILTER = AuditFilter()


class Clocks:
    """Two clocks that a test sets, in microseconds."""

    def __init__(self) -> None:
        self.wall = 1_000 * DAY
        self.steady = DAY
        self.guard = ClockGuard(wall=lambda: self.wall, steady=lambda: self.steady)

    def pass_time(self, span: int, *, steps: int = 1, jump: int = 0) -> bool:
        """Let time pass, and the wall clock jump in addition; return True if it is trusted."""
        self.wall += jump
        for _ in range(steps):
            self.wall += span // steps
            self.steady += span // steps
            self.guard.observe()
        return self.guard.is_trusted


@pytest.fixture
def clocks() -> Clocks:
    """Clocks of a process that has started with a right clock."""
    clocks = Clocks()
    clocks.guard.compare(clocks.wall - HOUR)
    assert clocks.pass_time(MINUTE)
    return clocks


def test_usual_time_is_trusted(clocks: Clocks) -> None:
    assert clocks.pass_time(3 * DAY, steps=300)
    assert clocks.pass_time(MINUTE, jump=30 * MINUTE)
    assert clocks.pass_time(MINUTE, jump=-400 * DAY)


@pytest.mark.parametrize("jump", [2 * HOUR, 400 * DAY])
def test_clock_that_jumps_ahead_is_trusted_after_it_returns(clocks: Clocks, jump: int) -> None:
    assert not clocks.pass_time(2, jump=jump)
    assert not clocks.pass_time(HOUR, steps=60)
    assert clocks.pass_time(2, jump=-jump)
    assert clocks.pass_time(HOUR, steps=60)


def test_clock_that_jumps_ahead_is_trusted_after_a_day(clocks: Clocks) -> None:
    assert not clocks.pass_time(2, jump=400 * DAY)
    assert not clocks.pass_time(2, jump=400 * DAY)
    assert not clocks.pass_time(2, jump=-100 * DAY)
    assert not clocks.pass_time(DAY - HOUR, steps=100)
    assert clocks.pass_time(HOUR, steps=4)


def test_suspended_machine_is_trusted_the_next_morning(clocks: Clocks) -> None:
    assert clocks.pass_time(12 * HOUR)
    assert not clocks.pass_time(400 * DAY)  # Both clocks are wrong.


@pytest.mark.parametrize(("newest", "trusted"), [(HOUR, True), (2 * DAY, False), (None, False)])
def test_new_process_compares_its_clock_with_the_newest_row(
    newest: int | None, trusted: bool
) -> None:
    clocks = Clocks()
    clocks.guard.compare(None if newest is None else clocks.wall - newest)
    assert clocks.pass_time(MINUTE) is trusted
    assert clocks.pass_time(DAY, steps=20)


@contextlib.asynccontextmanager
async def watching(shared: SharedDatabases) -> AsyncIterator[None]:
    """Sweep and clean up all the time, with one day of audit entries."""
    async with open_service(replace(shared.settings, audit=Audit(keep_days=1))) as service:
        start_jobs(service, 0.01)
        yield


async def wait_for_cleanup(shared: SharedDatabases) -> None:
    """Wait until a cleanup has removed a stale lock file, its last step."""
    folder = shared.folder / "main.db.workers"
    WorkerLock.acquire(folder, "stray").release()
    os.utime(folder / "stray.lock", times=(0, 0))
    await wait_until(lambda: not (folder / "stray.lock").exists())


def an_entry(at: int) -> AuditRow:
    return AuditRow(at, "me", "http", "create_session", None, "allowed", None, None, None)


async def test_jump_of_the_clock_deletes_no_rows(
    shared: SharedDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        for age in (3 * DAY, HOUR, 0):
            await main.write(audit.append_entry(an_entry(now() - age)))
        for name, hours in (("0-old", 25), ("0-new", 23)):
            await create_ended_run(databases, "main", name, hours)

        async def kept() -> tuple[int | None, bool, bool]:
            seen = [await main.read(events.get_last_seq(name)) for name in ("0-old", "0-new")]
            page = await main.read(audit.list_page(NO_FILTER))
            return len(page.rows), seen[0] >= 0, seen[1] >= 0

        async def has_cleaned() -> bool:
            return await kept() == (3, False, True)  # The deletion has an entry.

        async with watching(shared):
            await wait_until(has_cleaned)
            with shift_clock(400 * 86_400):
                await wait_until(lambda: "was set ahead" in caplog.text)
                for _ in range(3):
                    await wait_for_cleanup(shared)
                assert await kept() == (3, False, True)
            await wait_for_cleanup(shared)
            assert await kept() == (3, False, True)


async def test_new_process_with_a_wrong_clock_deletes_no_rows(shared: SharedDatabases) -> None:
    async with shared.open() as databases:
        main = databases["main"]
        await main.write(audit.append_entry(an_entry(now())))
        await create_ended_run(databases, "main", "0-new", 1)
        with shift_clock(400 * 86_400):
            async with watching(shared):
                for _ in range(3):
                    await wait_for_cleanup(shared)
        assert await main.read(audit.get_newest_time()) is not None
        assert await main.read(events.get_last_seq("0-new")) >= 0
