"""Work that goes on after it was told to stop: it is known, and heard of when it ends."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from agentctl.runtime import unstopped
from agentctl.runtime.unstopped import (
    TooManyAbandonedThreads,
    UnstoppedWork,
    run_in_thread,
    wait_until_done,
)
from tests.loops import wait_until


async def left_thread(leftovers: UnstoppedWork, release: threading.Event, name: str = "t") -> None:
    """A thread that waits for `release` and that nobody waits for any more."""
    call = asyncio.create_task(run_in_thread(lambda: release.wait(30), name, leftovers))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()


async def settled(leftovers: UnstoppedWork) -> list[bool]:
    """What a listener is told; waits until it was told something."""
    told: list[bool] = []
    leftovers.notify_when_empty(told.append)
    assert told == []
    await wait_until(lambda: told)
    await asyncio.sleep(0)
    return told


async def test_nothing_was_left() -> None:
    leftovers = UnstoppedWork()

    assert not leftovers.pending
    assert await settled(leftovers) == [False]


@pytest.mark.parametrize("failing", [False, True])
async def test_a_thread_is_pending_until_it_ends_and_its_result_was_late(failing: bool) -> None:
    leftovers, release = UnstoppedWork(), threading.Event()

    def work() -> str:
        release.wait(30)
        if failing:
            raise SystemExit
        return "late"

    call = asyncio.create_task(run_in_thread(work, "slow", leftovers))
    await asyncio.sleep(0)
    assert not leftovers.pending
    call.cancel()
    await asyncio.wait({call})

    assert leftovers.pending
    assert leftovers.names == ["slow"]
    told: list[bool] = []
    leftovers.notify_when_empty(told.append)
    await asyncio.sleep(0.01)
    assert told == []
    release.set()
    await wait_until(lambda: told)
    assert told == [True]
    assert not leftovers.pending


@pytest.mark.parametrize("returns", [False, True])
async def test_a_task_that_ends_as_cancelled_at_last_had_no_result(returns: bool) -> None:
    leftovers, release = UnstoppedWork(), asyncio.Event()

    async def stubborn() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await release.wait()
            if not returns:
                raise
        return "late"

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    leftovers.add(task, "stubborn")
    leftovers.add(task, "stubborn")

    assert leftovers.names == ["stubborn"]
    release.set()
    assert await settled(leftovers) == [returns]


async def test_the_listener_hears_once_of_all_and_of_a_result_before_it_listened() -> None:
    leftovers = UnstoppedWork()
    first, second = threading.Event(), threading.Event()
    await left_thread(leftovers, first, "first")
    await left_thread(leftovers, second, "second")
    assert leftovers.names == ["first", "second"]

    first.set()
    await wait_until(lambda: leftovers.names == ["second"])
    told: list[bool] = []
    leftovers.notify_when_empty(told.append)
    second.set()
    await wait_until(lambda: told)
    assert told == [True]


async def test_work_that_ended_was_not_left() -> None:
    leftovers = UnstoppedWork()
    done = asyncio.create_task(asyncio.sleep(0))
    await done
    leftovers.add(done, "done")

    assert not leftovers.pending
    assert await settled(leftovers) == [False]


async def test_only_so_many_threads_may_be_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unstopped, "MAXIMUM_ABANDONED", unstopped.count_abandoned_threads() + 2)
    leftovers, release = UnstoppedWork(), threading.Event()
    called: list[str] = []
    for name in ("first", "second"):
        await left_thread(leftovers, release, name)

    for _ in range(3):
        with pytest.raises(TooManyAbandonedThreads):
            await run_in_thread(lambda: called.append("third"), "third", leftovers)
    assert called == []
    assert [record.message.split(" was not called")[0] for record in caplog.records] == [
        "the tool third"
    ]

    release.set()
    assert await settled(leftovers) == [True]
    await run_in_thread(lambda: called.append("third"), "third", leftovers)
    assert called == ["third"]


async def test_a_thread_that_outlives_its_loop_is_counted_until_it_ends() -> None:
    before, release = unstopped.count_abandoned_threads(), threading.Event()
    await asyncio.to_thread(asyncio.run, left_thread(UnstoppedWork(), release))

    assert unstopped.count_abandoned_threads() == before + 1
    release.set()
    await wait_until(lambda: unstopped.count_abandoned_threads() == before)


async def test_what_ends_in_its_own_time_is_not_waited_for_longer() -> None:
    quick, stuck = asyncio.create_task(asyncio.sleep(0)), asyncio.create_task(asyncio.sleep(30))

    assert await wait_until_done({quick}, 30.0)
    assert not await wait_until_done({quick, stuck}, 0.02)
    stuck.cancel()
    assert await wait_until_done({quick, stuck}, 30.0)


async def test_a_loop_that_is_busy_gives_work_its_turns_to_end() -> None:
    async def in_turns() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def busy() -> None:
        while True:
            time.sleep(0.002)
            await asyncio.sleep(0)

    others = [asyncio.create_task(busy()) for _ in range(3)]
    assert await wait_until_done({asyncio.create_task(in_turns())}, 0.001)
    for other in others:
        other.cancel()
    await asyncio.wait(others)
