"""The longest step of an event loop, in CPU time: other work on the machine does not change it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STEP_LIMIT = 1.0
"""CPU seconds of a step on a slow, busy machine. Without its bound, a test that uses it took
seconds."""


class LongestStep:
    """The longest step so far, in seconds of CPU time of this thread."""

    seconds = 0.0


@asynccontextmanager
async def measure_steps() -> AsyncIterator[LongestStep]:
    """Measure the steps of the running event loop while the block lasts."""
    longest = LongestStep()

    async def watch() -> None:
        while True:
            begun = time.thread_time()
            await asyncio.sleep(0)
            longest.seconds = max(longest.seconds, time.thread_time() - begun)

    watching = asyncio.create_task(watch())
    try:
        yield longest
    finally:
        await asyncio.sleep(0)
        watching.cancel()
