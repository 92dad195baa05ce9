"""Work that the code of a run starts: it is known, cancelled or left, and named."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import anyio.to_thread
import pytest

from agentctl import outside_run
from agentctl.work import started_work
from agentctl.work.child_processes import identify_child, is_running, open_process
from agentctl.work.started_work import CodeScope
from agentctl.work.unstopped import UnstoppedWork
from tests.kit.conditions import PATIENCE, wait_until


@pytest.fixture(autouse=True)
def short_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started_work, "REPEAT_SECONDS", 0.05)


async def wait_for_ever() -> None:
    await asyncio.sleep(600)


async def test_cancelled_task_is_not_interrupted_while_it_ends() -> None:
    unstopped = UnstoppedWork()
    ended = asyncio.Event()

    async def close_slowly() -> None:
        try:
            await wait_for_ever()
        finally:
            await ended.wait()

    with CodeScope(unstopped).enter():
        task = asyncio.create_task(close_slowly())
        await asyncio.sleep(0)
    await unstopped.end_started(cancel=True)
    assert unstopped.names == ["task close_slowly"]
    await asyncio.sleep(0.2)
    assert (task.done(), task.cancelling()) == (False, 1)
    ended.set()
    await wait_until(lambda: not unstopped.pending)


async def test_task_that_a_cancelled_one_starts_is_cancelled_later() -> None:
    unstopped = UnstoppedWork()
    later = list[asyncio.Task[None]]()

    async def start_another() -> None:
        try:
            await wait_for_ever()
        finally:
            later.append(asyncio.create_task(wait_for_ever()))

    with CodeScope(unstopped).enter():
        asyncio.create_task(start_another())  # noqa: RUF006
        await asyncio.sleep(0)
    await unstopped.end_started(cancel=True)
    assert unstopped.names == ["task wait_for_ever"]
    await wait_until(lambda: not unstopped.pending)
    assert later[0].cancelled()


async def test_task_that_starts_late_does_not_name_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A model may have requested thousands of calls: each that ignores the cancel may start tasks.
    unstopped = UnstoppedWork()
    ended = asyncio.Event()
    monkeypatch.setattr(started_work, "GRACE_SECONDS", 0.05)
    find_name = CodeScope.find_name
    named = list[object]()

    def count(scope: CodeScope, work: object) -> str:
        named.append(work)
        return find_name(scope, work)

    async def go_on() -> None:
        while not ended.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ended.wait()

    with CodeScope(unstopped).enter():
        tasks = {asyncio.create_task(go_on()) for _ in range(20)}
        await asyncio.sleep(0)
        await unstopped.end_started(cancel=True)
        monkeypatch.setattr(CodeScope, "find_name", count)
        late = asyncio.create_task(go_on())
        seen = [*named]
    ended.set()
    await asyncio.wait({*tasks, late})
    await wait_until(lambda: not unstopped.pending)
    assert seen == [late]


async def test_timer_starts_no_task_after_the_stop() -> None:
    unstopped = UnstoppedWork()
    started = list[asyncio.Task[None]]()

    def start_late() -> None:
        started.append(asyncio.create_task(wait_for_ever()))

    with CodeScope(unstopped).enter():
        asyncio.get_running_loop().call_later(0.05, start_late)
    await unstopped.end_started(cancel=True)
    unstopped.notify_when_empty(lambda late: None)
    await wait_until(lambda: started and started[0].cancelled())


async def test_new_context_does_not_hide_a_task() -> None:
    unstopped = UnstoppedWork()
    inner = list[asyncio.Task[None]]()

    async def start_inner() -> None:
        inner.append(asyncio.create_task(wait_for_ever()))
        await wait_for_ever()

    with CodeScope(unstopped).enter():
        asyncio.create_task(start_inner(), context=contextvars.Context())  # noqa: RUF006
        await asyncio.sleep(0)
    await unstopped.end_started(cancel=True)
    assert inner[0].cancelled()
    assert unstopped.names == []


@pytest.mark.parametrize("module", ["redis.asyncio.client", "agentctl.work.event_loop"])
async def test_tasks_of_connections_and_of_the_server_are_left_alone(module: str) -> None:
    unstopped = UnstoppedWork()
    names = {"__name__": module, "asyncio": asyncio, "wait_for_ever": wait_for_ever}
    exec("def start(): return asyncio.create_task(wait_for_ever())", names)
    with CodeScope(unstopped).enter():
        task = names["start"]()
        with outside_run():
            other = asyncio.create_task(wait_for_ever())
    await unstopped.end_started(cancel=True)
    assert unstopped.names == []
    for each in (task, other):
        assert not each.cancelling()
        each.cancel()


async def test_failure_of_a_task_that_was_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    unstopped = UnstoppedWork()
    release = asyncio.Event()

    async def fail() -> None:
        await release.wait()
        raise ValueError("in the background")

    with CodeScope(unstopped).enter():
        asyncio.create_task(fail())  # noqa: RUF006
    await unstopped.end_started(cancel=False)
    assert unstopped.names == ["task fail"]
    release.set()
    await wait_until(lambda: not unstopped.pending)
    await wait_until(lambda: "a task that a completed run has left failed" in caplog.text)


async def test_nested_generators_end_with_their_run_on_a_busy_machine() -> None:
    """Their ends take longer than the grace, because other programs have the processor."""
    unstopped = UnstoppedWork()
    ended = list[int]()

    async def count(depth: int) -> AsyncIterator[int]:
        try:
            if depth:
                async for number in count(depth - 1):
                    yield number
            yield depth
        finally:
            time.sleep(0.6 * started_work.GRACE_SECONDS)
            await asyncio.sleep(0.002)
            ended.append(depth)

    async def leave() -> None:
        async for _ in count(3):
            return

    with CodeScope(unstopped).enter():
        await leave()
    await unstopped.end_started(cancel=False)
    assert (ended, unstopped.names) == ([3, 2, 1, 0], [])


async def test_code_that_leaves_generators_for_ever_is_cancelled() -> None:
    unstopped = UnstoppedWork()
    ended = list[int]()

    async def count() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)

    async def leave_many() -> None:
        for number in range(100_000):
            async for _ in count():
                break
            await asyncio.sleep(0)
            ended.append(number)

    with CodeScope(unstopped).enter():
        task = asyncio.create_task(leave_many())
        await wait_until(lambda: ended)
    begun = len(ended)
    await unstopped.end_started(cancel=True)
    assert task.cancelled()
    assert (unstopped.names, len(ended) - begun < 100) == ([], True)


async def test_generator_that_does_not_end_is_named() -> None:
    unstopped = UnstoppedWork()
    release = asyncio.Event()

    async def count() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await release.wait()

    async def leave() -> None:
        async for _ in count():
            return

    with CodeScope(unstopped).enter():
        await leave()
    await unstopped.end_started(cancel=False)
    assert unstopped.names == ["runner"]
    release.set()
    await wait_until(lambda: not unstopped.pending)


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd_open: run on Linux")
async def test_code_that_waits_gets_the_exit_code_of_an_ended_process() -> None:
    unstopped = UnstoppedWork()
    with CodeScope(unstopped, "shell").enter():
        process = subprocess.Popen(["/bin/sleep", "600"])
        other = await asyncio.create_subprocess_exec("/bin/sleep", "600")
    await unstopped.end_started(cancel=True)
    await wait_until(lambda: not unstopped.pending)
    assert process.wait(PATIENCE) == -15
    assert await other.wait() == -15


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd_open: run on Linux")
@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd_open: run on Linux")
async def test_process_is_ended_next_to_more_than_a_thousand_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    unstopped = UnstoppedWork()
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(1_100):
                stack.enter_context(open(os.devnull))  # noqa: PTH123
            with CodeScope(unstopped).enter():
                process = await asyncio.create_subprocess_exec("sleep", "600")
            await unstopped.end_started(cancel=True)
            assert await process.wait() == -signal.SIGTERM
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_process_of_a_cancelled_run_gets_one_signal(tmp_path: Path) -> None:
    """The second one lets some programs end without their cleanup."""
    unstopped = UnstoppedWork()
    signals = tmp_path / "signals"
    line = (
        f"trap 'echo term >> {signals}' TERM; echo ready >> {signals}; while :; do sleep 0.05; done"
    )

    async def count() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0.8 * started_work.GRACE_SECONDS)

    with CodeScope(unstopped, "shell").enter():
        process = subprocess.Popen(["/bin/sh", "-c", line])
        await wait_until(signals.exists)
        async for _ in count():
            break
    await unstopped.end_started(cancel=True)
    await wait_until(lambda: not unstopped.pending)
    assert process.wait(PATIENCE) == -9
    assert signals.read_text().split() == ["ready", "term"]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def test_call_that_waits_in_a_thread_of_anyio_is_named() -> None:
    """The thread was started outside of the run, and the call waits as idle threads do."""
    await anyio.to_thread.run_sync(threading.current_thread)
    unstopped = UnstoppedWork()
    values = queue.Queue[int]()
    with CodeScope(unstopped).enter():
        call = anyio.to_thread.run_sync(values.get, abandon_on_cancel=True)
        task = asyncio.create_task(call)
        await wait_until(values.not_empty._waiters.__len__)  # type: ignore[attr-defined]
    await unstopped.end_started(cancel=True)
    assert task.cancelled()
    assert unstopped.names == ["runner"]
    values.put(1)
    await wait_until(lambda: not unstopped.pending)


async def test_call_that_no_thread_of_anyio_has_begun_is_cancelled() -> None:
    unstopped = UnstoppedWork()
    limiter = anyio.CapacityLimiter(1)
    begun = list[int]()
    await limiter.acquire()
    with CodeScope(unstopped).enter():
        call = anyio.to_thread.run_sync(begun.append, 1, limiter=limiter)
        task = asyncio.create_task(call)
        await wait_until(lambda: limiter.statistics().tasks_waiting)
    await unstopped.end_started(cancel=True)
    assert (task.cancelled(), unstopped.names, begun) == (True, [], [])


async def test_thread_of_anyio_between_two_calls_is_not_named() -> None:
    """As on a busy machine, the thread has given the result and does not run on."""
    unstopped = UnstoppedWork()

    def end_as_last() -> threading.Lock:
        items = threading.current_thread().queue  # type: ignore[attr-defined]
        mutex: threading.Lock = items.mutex
        mutex.acquire()
        return mutex

    with CodeScope(unstopped).enter():
        mutex = await anyio.to_thread.run_sync(end_as_last)
    await unstopped.end_started(cancel=False)
    mutex.release()
    assert unstopped.names == []


async def test_thread_of_a_pool_between_two_calls_is_not_named(pool: ThreadPoolExecutor) -> None:
    unstopped = UnstoppedWork()
    idle = pool._idle_semaphore._cond
    with CodeScope(unstopped).enter():
        await asyncio.get_running_loop().run_in_executor(pool, idle.acquire)
    await unstopped.end_started(cancel=False)
    idle.release()
    assert unstopped.names == []


async def test_call_of_another_run_in_a_thread_of_a_pool_is_not_named(
    pool: ThreadPoolExecutor,
) -> None:
    first = UnstoppedWork()
    second = UnstoppedWork()
    release = threading.Event()
    with CodeScope(first).enter():
        await asyncio.wrap_future(pool.submit(int))
    with CodeScope(second).enter():
        pool.submit(release.wait)
    await first.end_started(cancel=False)
    await second.end_started(cancel=False)
    assert (first.names, second.names) == ([], ["runner"])
    release.set()
    await wait_until(lambda: not second.pending)


async def test_what_a_call_of_a_pool_starts_is_named(pool: ThreadPoolExecutor) -> None:
    unstopped = UnstoppedWork()
    release = threading.Event()
    inner = list[Future[bool]]()

    def start() -> None:
        inner.append(pool.submit(release.wait))

    with CodeScope(unstopped).enter():
        await asyncio.wrap_future(pool.submit(start))
    await unstopped.end_started(cancel=False)
    assert unstopped.names == ["runner"]
    release.set()
    await wait_until(lambda: not unstopped.pending)
    assert inner[0].result()


async def test_process_that_has_ended_is_not_watched() -> None:
    program = subprocess.Popen(["sleep", "600"])
    process = identify_child(program.pid)
    assert process is not None
    assert is_running(process)

    program.kill()
    program.wait()
    assert not is_running(process)
    assert open_process(process) is None
