"""Coroutines as tests: each runs in a new event loop, whose clock the test can set ahead."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol, TypeVar

import pytest

from tests.kit.conditions import wait_until

__all__ = [
    "loop_servers",
    "pass_time",
    "pass_time_until",
    "pytest_pyfunc_call",
    "run",
    "wait_for_timer",
]

T = TypeVar("T")


class LoopServer(Protocol):
    """A server in the event loop of a test."""

    def serve(self) -> AbstractAsyncContextManager[None]:
        """Serve in the running event loop within the block."""


loop_servers: list[LoopServer] = []
"""The servers of the current test. A fixture adds its server, and removes it at its end."""


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with a clock that can be set ahead."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    def has_timer(self, more: float, most: float) -> bool:
        """Return True if a timer is due after more than some seconds, and at most some others."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        now = self.time()
        return any(more < timer.when() - now <= most and not timer.cancelled() for timer in timers)


async def wait_for_timer(seconds: float) -> None:
    """Wait until something waits for about this time: for more than half of it, and not longer."""
    loop = _get_loop()
    await wait_until(lambda: loop.has_timer(seconds / 2, seconds))


async def pass_time(seconds: float) -> None:
    """Wait until something waits for about this time, and let it pass at once.

    So a test can give the product a long time limit, which no busy machine reaches, and needs not
    wait for it. The clock of the running event loop is set ahead, and what is due by then happens
    at the next step. Only what waits on the loop sees it (`asyncio.timeout`, `call_later`,
    `sleep`), not `time.monotonic` and not the waits of threads.
    """
    await wait_for_timer(seconds)
    _get_loop().ahead += seconds


async def pass_time_until(condition: Callable[[], Any], seconds: float) -> None:
    """Let a time pass at once, again and again, until a condition is true.

    It is for work that looks at the clock from time to time, and has no timer of the whole time.
    """
    loop = _get_loop()

    def set_ahead() -> Any:
        loop.ahead += seconds
        return condition()

    # Its pauses are real ones for threads: they end their work meanwhile.
    await wait_until(set_ahead)


def _get_loop() -> _Loop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _Loop), "only a test that is a coroutine has such a loop"
    return loop


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    run(pyfuncitem.obj(**arguments))
    return True


def run(work: Coroutine[Any, Any, T]) -> T:
    """Execute a coroutine in a new event loop, together with the servers of the test.

    A test or a fixture that is no coroutine uses it in place of `asyncio.run`.
    """

    async def serve() -> T:
        async with AsyncExitStack() as stack:
            for server in loop_servers:
                await stack.enter_async_context(server.serve())
            return await work

    with asyncio.Runner(loop_factory=_Loop) as runner:
        # Without servers there is no step before those of the coroutine.
        return runner.run(serve() if loop_servers else work)
