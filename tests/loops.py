"""Coroutines as tests: each runs in a new event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["pytest_pyfunc_call", "wait_until"]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function. A conftest imports this hook."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


async def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for a condition, checked after 5 to 50 ms, and return its first true value.

    The test fails after `seconds`.
    A condition that is awaited asks a server, so it is checked more and more rarely.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    pause = 0.005
    while True:
        met = condition()
        if inspect.isawaitable(met):
            met = await met
            pause = min(pause * 1.5, 0.05)
        if met:
            return met
        assert asyncio.get_running_loop().time() < deadline, "the condition was not met in time"
        await asyncio.sleep(pause)
