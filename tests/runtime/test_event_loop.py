"""The event loop of a process, interrupted by the code of users."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from agentctl.work.event_loop import run_event_loop


def test_system_exit_at_a_time_limit_does_not_end_the_loop() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def work() -> str:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        # As `asyncio.timeout` does it; the other task takes its turn before this one wakes up.
        loop.call_soon(task.cancel)
        other = loop.create_task(leave())
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            task.uncancel()
        await asyncio.sleep(0.01)
        assert isinstance(other.exception(), SystemExit)
        return "went on"

    assert run_event_loop(work()) == "went on"


def test_a_loop_inside_a_running_loop_is_refused() -> None:
    async def start_another() -> None:
        run_event_loop(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="runs in this thread already"):
        asyncio.run(start_another())


def test_generators_that_close_each_other_end_the_loop_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed = []

    async def read() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0.01)
            closed.append("read")

    async def pass_on() -> AsyncIterator[int]:
        async with contextlib.aclosing(read()) as parts:
            async for part in parts:
                yield part

    async def work() -> AsyncIterator[int]:
        parts = pass_on()
        await anext(parts)
        return parts

    with caplog.at_level(logging.INFO):
        run_event_loop(work())
    assert closed == ["read"]
    assert [record.exc_info for record in caplog.records] == [None]
