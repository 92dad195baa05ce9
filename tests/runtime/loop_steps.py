"""The longest step of an event loop, in CPU time: other work on the machine does not change it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

STEP_LIMIT = 1.0
"""CPU seconds of a step on a slow, busy machine. Without its bound, a test that uses it took
seconds."""


class LongestStep:
    """The longest step so far, in seconds of CPU time of this thread."""

    seconds = 0.0


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage, which takes long where earlier tests have left many objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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
    await asyncio.sleep(0)  # A block without an `await` is measured as well.
    try:
        with without_collections():
            yield longest
            await asyncio.sleep(0)
    finally:
        watching.cancel()
