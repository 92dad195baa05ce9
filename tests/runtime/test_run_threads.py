"""Threads that the library of an agent starts: the run knows them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentctl.work import event_loop, unstopped
from agentctl.work.event_loop import AbandonedThreads, TooManyAbandonedThreads, abandoned_threads
from agentctl.work.unstopped import RunThreads, UnstoppedWork, install_executor
from tests.loops import wait_until


async def call_in_thread(unstopped: UnstoppedWork, release: threading.Event) -> str:
    """Call a function in a thread, as a library does, in the run with this unstopped work."""

    def work() -> str:
        release.wait(60)
        return threading.current_thread().name if threading.current_thread().daemon else "pool"

    with RunThreads(unstopped):
        # The library may use separate tasks.
        return await asyncio.create_task(asyncio.to_thread(work))


async def test_thread_of_a_run_has_its_own_daemon_thread() -> None:
    install_executor()
    unstopped, release = UnstoppedWork(), threading.Event()
    release.set()

    assert await call_in_thread(unstopped, release) == "agent"
    assert not unstopped.pending


async def test_cancelled_call_leaves_a_known_thread() -> None:
    install_executor()
    unstopped, release, before = UnstoppedWork(), threading.Event(), abandoned_threads.count
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
    monkeypatch.setattr(unstopped, "abandoned_threads", AbandonedThreads())

    with pytest.raises(TooManyAbandonedThreads):
        await call_in_thread(UnstoppedWork(), threading.Event())


async def test_calls_without_a_run_use_the_pool() -> None:
    assert install_executor() is install_executor()
    name = await asyncio.to_thread(lambda: threading.current_thread().name)
    assert name.startswith("asyncio")


async def test_stop_iteration_in_a_thread_does_not_hang() -> None:
    install_executor()
    with RunThreads(UnstoppedWork()), pytest.raises(RuntimeError):
        await asyncio.to_thread(next, iter(()))
