"""The loop of the jobs: order, intervals, the lease, failures, wakes and the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agentctl import errors
from agentctl.runs.jobs import lanes as module
from agentctl.runs.jobs.lanes import Job, Jobs, Lane
from tests.kit.conditions import wait_until

SOON = 0.005
HOUR = 3_600.0


class Calls:
    """The names of the jobs that have run, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def note(self, name: str, failure: Exception | None = None) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            self.names.append(name)
            if failure is not None:
                raise failure

        return run


@contextlib.asynccontextmanager
async def running(*table: Lane, is_held: bool = True) -> AsyncIterator[Jobs]:
    lease: Any = SimpleNamespace(is_held=is_held)
    jobs = Jobs(lease)
    jobs.start(table)
    try:
        yield jobs
    finally:
        await jobs.close()


async def test_jobs_of_a_lane_run_in_the_order_of_the_table() -> None:
    calls = Calls()
    names = ["one", "two", "three"]
    async with running(Lane(SOON, [Job(name, calls.note(name)) for name in names])):
        await wait_until(lambda: len(calls.names) > 9)
    assert calls.names[:9] == names * 3


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (errors.Unavailable("no answer"), "the job bad failed: no answer"),
        (errors.Unavailable("no answer", cause="why"), "the job bad failed: no answer: why"),
        (ValueError("a secret"), "the job bad failed\nTraceback"),
    ],
)
async def test_failure_ends_the_pass_and_is_logged_once(
    failure: Exception, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    lane = [Job("good", calls.note("good")), Job("bad", calls.note("bad", failure))]
    lane.append(Job("next", calls.note("next")))
    async with running(Lane(SOON, lane), Lane(SOON, [Job("other", calls.note("other"))])) as jobs:
        await wait_until(lambda: jobs.times["bad", "failed"].count > 3)
        seen = jobs.times["other", "completed"].count
        await wait_until(lambda: jobs.times["other", "completed"].count > seen)
    assert jobs.times["good", "completed"].count >= jobs.times["bad", "failed"].count
    assert jobs.times["bad", "completed"].count == 0
    assert "next" not in calls.names
    assert caplog.text.count("the job bad failed") == caplog.text.count(line) == 1


async def test_leased_job_runs_only_in_the_process_with_the_lease() -> None:
    calls = Calls()
    lane = Lane(SOON, [Job("leased", calls.note("leased"), leased=True), Job("x", calls.note("x"))])
    async with running(lane, is_held=False) as jobs:
        await wait_until(lambda: calls.names == ["x"] * 3)
        jobs.lease.is_held = True
        await wait_until(lambda: calls.names[-2:] == ["leased", "x"])
        jobs.lease.is_held = False
        calls.names.clear()
        await wait_until(lambda: len(calls.names) > 3)
    assert set(calls.names) == {"x"}


async def test_job_takes_the_lease_for_the_jobs_after_it() -> None:
    calls = Calls()
    first = Job("first", calls.note("first"), leased=True)
    last = Job("last", calls.note("last"), leased=True)

    async def take() -> None:
        jobs.lease.is_held = True

    async with running(Lane(SOON, [first, Job("lease", take), last]), is_held=False) as jobs:
        await wait_until(lambda: len(calls.names) > 2)
    assert calls.names[:3] == ["last", "first", "last"]


async def test_job_with_a_longer_interval_leaves_out_passes() -> None:
    calls = Calls()
    lane = [Job("often", calls.note("often")), Job("once", calls.note("once"), seconds=HOUR)]
    async with running(Lane(SOON, lane)):
        await wait_until(lambda: calls.names.count("often") > 5)
    assert calls.names[:3] == ["often", "once", "often"]
    assert calls.names.count("once") == 1


async def test_unneeded_job_has_no_counts() -> None:
    calls = Calls()
    async with running(
        Lane(SOON, [Job("absent", None), Job("present", calls.note("present"))]),
        Lane(SOON, [Job("unused", None)]),
    ) as jobs:
        await wait_until(lambda: len(calls.names) > 1)
    assert {name for name, _ in jobs.times} == {"present"}


async def test_wake_ends_a_pause_at_once_and_then_rests() -> None:
    calls = Calls()
    woken = asyncio.Event()
    lane = Lane(HOUR, [Job("woken", calls.note("woken"))], woken=woken, rest=HOUR)
    async with running(lane):
        woken.set()
        await wait_until(lambda: calls.names == ["woken"])
        assert not woken.is_set()
        woken.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert calls.names == ["woken"]


@pytest.mark.parametrize(("steady", "pauses"), [(True, [0.02, 0.0]), (False, [0.02, 0.02])])
async def test_steady_lane_counts_the_time_of_its_jobs(
    steady: bool, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    loop = asyncio.get_running_loop()

    def timeout(seconds: float | None) -> asyncio.Timeout:
        # Servers of other tests in threads of this process call it, too.
        if asyncio.get_running_loop() is loop:
            seen.append(seconds or 0.0)
        return original(seconds)

    original = module.asyncio.timeout
    lane = Lane(0.02, [Job("slow", lambda: asyncio.sleep(0.03))], steady=steady)
    monkeypatch.setattr(module.asyncio, "timeout", timeout)
    async with running(lane) as jobs:
        while jobs.times["slow", "completed"].count < 2:
            await asyncio.sleep(SOON)
    assert seen[:2] == pauses


async def test_close_waits_for_the_end_of_a_cancelled_job() -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ends.append("cleaned")

    entered = asyncio.Event()

    @contextlib.asynccontextmanager
    async def within() -> AsyncIterator[None]:
        entered.set()
        yield
        ends.append("never")  # pragma: no cover

    async with running(Lane(SOON, [Job("long", work)], within=within)) as jobs:
        await entered.wait()
        await asyncio.sleep(0)
    assert ends == ["cleaned"]
    assert jobs.times["long", "failed"].count == 0
