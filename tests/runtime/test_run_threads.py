"""Threads that the library of an agent starts: the run knows them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from agentctl.work import event_loop
from agentctl.work import unstopped as unstopped_module
from agentctl.work.event_loop import AbandonedThreads, TooManyAbandonedThreads, abandoned_threads
from agentctl.work.unstopped import MAXIMUM_THREADS, RunThreads, UnstoppedWork, install_executor
from tests.kit.conditions import PATIENCE, wait_until


@contextlib.contextmanager
def count_starts(starters: list[str]) -> Iterator[None]:
    """Add the name of the thread of each start of a thread."""
    start = threading.Thread.start

    def count(thread: threading.Thread) -> None:
        starters.append(threading.current_thread().name)
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", count)
        yield


async def call_in_thread(unstopped: UnstoppedWork, release: threading.Event) -> str:
    """Call a function in a thread, as a library does, in the run with this unstopped work."""

    def work() -> str:
        release.wait(PATIENCE)
        return threading.current_thread().name if threading.current_thread().daemon else "pool"

    with RunThreads(unstopped):
        # The library may use separate tasks.
        return await asyncio.create_task(asyncio.to_thread(work))


async def test_thread_of_a_run_has_its_own_daemon_thread() -> None:
    install_executor()
    unstopped = UnstoppedWork()
    release = threading.Event()
    release.set()

    assert await call_in_thread(unstopped, release) == "agent"
    assert not unstopped.pending


async def test_cancelled_call_leaves_a_known_thread() -> None:
    install_executor()
    unstopped = UnstoppedWork()
    release = threading.Event()
    before = abandoned_threads.count
    call = asyncio.create_task(call_in_thread(unstopped, release))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.wait({call})

    assert call.cancelled()
    assert unstopped.pending
    assert abandoned_threads.count == before + 1
    release.set()
    await wait_until(lambda: not unstopped.pending)
    assert abandoned_threads.count == before


async def test_too_many_abandoned_threads_refuse_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    install_executor()
    monkeypatch.setattr(event_loop, "MAXIMUM_ABANDONED", 0)
    monkeypatch.setattr(unstopped_module, "abandoned_threads", AbandonedThreads())

    with pytest.raises(TooManyAbandonedThreads):
        await call_in_thread(UnstoppedWork(), threading.Event())


async def test_many_calls_share_the_threads_of_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unstopped_module, "WATCH_SECONDS", 600)
    install_executor()
    works = [0]
    peak = [0]
    lock = threading.Lock()
    starters: list[str] = []

    def work(number: int) -> int:
        with lock:
            works[0] += 1
            peak[0] = max(peak[0], works[0])
        time.sleep(0.001)
        with lock:
            works[0] -= 1
        return number

    with RunThreads(UnstoppedWork()):
        calls = [asyncio.to_thread(work, number) for number in range(200)]
        with count_starts(starters):
            assert await asyncio.gather(*calls) == [*range(200)]

    assert 1 < peak[0] <= MAXIMUM_THREADS
    # A start waits for its thread: the event loop makes the first one of a turn only.
    assert starters.count("MainThread") < 20


@pytest.mark.parametrize("fails", [True, False])
async def test_waiting_calls_end_with_a_cancelled_run(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unstopped_module, "WATCH_SECONDS", 600)
    install_executor()
    unstopped = UnstoppedWork()
    release = threading.Event()
    made = list[int]()
    before = abandoned_threads.count

    def work(number: int) -> None:
        made.append(number)
        release.wait(PATIENCE)

    async def call_all() -> None:
        with RunThreads(unstopped):
            tasks = [asyncio.create_task(asyncio.to_thread(work, each)) for each in range(60)]
            await wait_until(lambda: len(made) == MAXIMUM_THREADS)
            unfinished.extend(tasks)
            if fails:
                raise ValueError

    unfinished: list[asyncio.Task[None]] = []
    await asyncio.gather(call_all(), return_exceptions=True)
    assert unstopped.pending
    assert abandoned_threads.count == before + MAXIMUM_THREADS
    release.set()
    await asyncio.wait(unfinished)
    await wait_until(lambda: not unstopped.pending)
    # A completed run cancels nothing.
    assert len(made) == (MAXIMUM_THREADS if fails else 60)
    assert sum(task.cancelled() for task in unfinished) == (60 - MAXIMUM_THREADS if fails else 0)
    await wait_until(lambda: abandoned_threads.count == before)


async def test_threads_can_wait_for_calls_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unstopped_module, "WATCH_SECONDS", 0.05)
    install_executor()
    loop = asyncio.get_running_loop()
    outer = threading.Barrier(MAXIMUM_THREADS)

    def work() -> str:
        # All threads of the run wait for the event loop.
        outer.wait(PATIENCE)
        name = asyncio.to_thread(lambda: threading.current_thread().name)
        return asyncio.run_coroutine_threadsafe(name, loop).result(PATIENCE)

    with RunThreads(UnstoppedWork()):
        calls = [asyncio.to_thread(work) for _ in range(MAXIMUM_THREADS)]
        assert await asyncio.gather(*calls) == ["agent"] * MAXIMUM_THREADS


async def test_call_of_a_failed_run_is_known() -> None:
    install_executor()
    loop = asyncio.get_running_loop()
    unstopped = UnstoppedWork()
    release = threading.Event()
    started = threading.Event()

    def hold() -> None:
        started.set()
        release.wait(PATIENCE)

    def work() -> None:
        asyncio.run_coroutine_threadsafe(asyncio.to_thread(hold), loop)

    with contextlib.suppress(ValueError), RunThreads(unstopped):
        await asyncio.to_thread(work)
        await wait_until(started.is_set)
        raise ValueError
    assert unstopped.pending
    release.set()
    await wait_until(lambda: not unstopped.pending)


async def test_calls_fail_if_the_process_has_no_more_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_executor()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with RunThreads(UnstoppedWork()):
        for _ in range(2):
            with pytest.raises(RuntimeError):
                await asyncio.wait_for(asyncio.to_thread(int), PATIENCE)
    monkeypatch.undo()


async def test_calls_without_a_run_use_the_pool() -> None:
    assert install_executor() is install_executor()
    name = await asyncio.to_thread(lambda: threading.current_thread().name)
    assert name.startswith("asyncio")


async def test_stop_iteration_in_a_thread_does_not_hang() -> None:
    install_executor()
    with RunThreads(UnstoppedWork()), pytest.raises(RuntimeError):
        await asyncio.to_thread(next, iter(()))
