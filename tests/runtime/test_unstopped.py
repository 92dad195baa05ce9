"""Work that continues after a cancel: it is known, and its end is reported."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from agentctl.work import event_loop
from agentctl.work.event_loop import TooManyAbandonedThreads, wait_until_done
from agentctl.work.unstopped import UnstoppedWork, run_in_thread
from tests.kit.conditions import PATIENCE, wait_until


async def abandon_thread(
    unstopped: UnstoppedWork, release: threading.Event, name: str = "t"
) -> None:
    """Start a thread that waits for `release`, and abandon it."""
    call = asyncio.create_task(run_in_thread(lambda: release.wait(PATIENCE), name, unstopped))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()


async def wait_for_listener(unstopped: UnstoppedWork) -> list[bool]:
    """Return the calls of a listener, once there is one."""
    told: list[bool] = []
    unstopped.notify_when_empty(told.append)
    assert told == []
    await wait_until(lambda: told)
    await asyncio.sleep(0)
    return told


async def test_no_unstopped_work() -> None:
    unstopped = UnstoppedWork()

    assert not unstopped.pending
    assert await wait_for_listener(unstopped) == [False]


@pytest.mark.parametrize("failing", [False, True])
async def test_abandoned_thread_is_pending_until_its_late_result(failing: bool) -> None:
    unstopped = UnstoppedWork()
    release = threading.Event()

    def work() -> str:
        release.wait(PATIENCE)
        if failing:
            raise SystemExit
        return "late"

    call = asyncio.create_task(run_in_thread(work, "slow", unstopped))
    await asyncio.sleep(0)
    assert not unstopped.pending
    call.cancel()
    await asyncio.wait({call})

    assert unstopped.pending
    assert unstopped.names == ["slow"]
    told: list[bool] = []
    unstopped.notify_when_empty(told.append)
    await asyncio.sleep(0.01)
    assert told == []
    release.set()
    await wait_until(lambda: told)
    assert told == [True]
    assert not unstopped.pending


@pytest.mark.parametrize("returns", [False, True])
async def test_task_that_ends_as_cancelled_has_no_late_result(returns: bool) -> None:
    unstopped = UnstoppedWork()
    release = asyncio.Event()

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
    unstopped.add(task, "stubborn")
    unstopped.add(task, "stubborn")

    assert unstopped.names == ["stubborn"]
    release.set()
    assert await wait_for_listener(unstopped) == [returns]


async def test_listener_is_called_once_with_earlier_late_results() -> None:
    unstopped = UnstoppedWork()
    first = threading.Event()
    second = threading.Event()
    await abandon_thread(unstopped, first, "first")
    await abandon_thread(unstopped, second, "second")
    assert unstopped.names == ["first", "second"]

    first.set()
    await wait_until(lambda: unstopped.names == ["second"])
    told: list[bool] = []
    unstopped.notify_when_empty(told.append)
    second.set()
    await wait_until(lambda: told)
    assert told == [True]


async def test_names_are_those_of_the_rest_when_a_part_ends() -> None:
    unstopped = UnstoppedWork()
    member = UnstoppedWork()
    first = threading.Event()
    second = threading.Event()
    await abandon_thread(unstopped, first, "tool")
    await abandon_thread(member, second, "runner")
    await abandon_thread(member, second, "runner")
    seen: list[list[str]] = []
    unstopped.notify_changes(lambda: seen.append(unstopped.names))
    unstopped.add_all(member)
    unstopped.add_all(member)
    assert seen == [["tool", "runner"], ["tool", "runner"]]
    first.set()
    await wait_until(lambda: seen[-1] == ["runner"])
    second.set()
    await wait_until(lambda: not unstopped.pending)
    assert all(seen)


async def test_finished_work_is_not_unstopped() -> None:
    unstopped = UnstoppedWork()
    done = asyncio.create_task(asyncio.sleep(0))
    await done
    unstopped.add(done, "done")

    assert not unstopped.pending
    assert await wait_for_listener(unstopped) == [False]


async def test_number_of_abandoned_threads_is_limited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_loop, "MAXIMUM_ABANDONED", event_loop.abandoned_threads.count + 2)
    # Another test of this process may have logged the same within the last minute.
    monkeypatch.setattr(event_loop.abandoned_threads, "_logged_at", -60.0)
    unstopped = UnstoppedWork()
    release = threading.Event()
    called: list[str] = []
    for name in ("first", "second"):
        await abandon_thread(unstopped, release, name)

    for _ in range(3):
        with pytest.raises(TooManyAbandonedThreads):
            await run_in_thread(lambda: called.append("third"), "third", unstopped)
    assert called == []
    assert [record.message.split(" was not called")[0] for record in caplog.records] == [
        "the tool third"
    ]

    release.set()
    assert await wait_for_listener(unstopped) == [True]
    await run_in_thread(lambda: called.append("third"), "third", unstopped)
    assert called == ["third"]


async def test_thread_that_outlives_its_loop_is_counted() -> None:
    before = event_loop.abandoned_threads.count
    release = threading.Event()
    await asyncio.to_thread(asyncio.run, abandon_thread(UnstoppedWork(), release))

    assert event_loop.abandoned_threads.count == before + 1
    release.set()
    await wait_until(lambda: event_loop.abandoned_threads.count == before)


async def test_wait_ends_with_the_work() -> None:
    quick = asyncio.create_task(asyncio.sleep(0))
    stuck = asyncio.create_task(asyncio.sleep(30))

    assert await wait_until_done({quick}, 30.0)
    assert not await wait_until_done({quick, stuck}, 0.02)
    stuck.cancel()
    assert await wait_until_done({quick, stuck}, 30.0)


async def test_busy_loop_gives_work_its_turns() -> None:
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
