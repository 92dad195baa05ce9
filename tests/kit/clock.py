"""Coroutines as tests: each runs in a new event loop, whose clock the test can set ahead."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from tests.kit.conditions import wait_until

__all__ = ["pass_time", "pytest_pyfunc_call", "wait_for_timer"]


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
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True
