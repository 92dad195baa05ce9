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


class Steps:
    """The steps of an event loop so far."""

    count = 0
    """Turns that another task has had."""

    seconds = 0.0
    """The longest step, in seconds of CPU time of this thread."""


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage, which takes long where earlier tests have left many objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@asynccontextmanager
async def measure_steps() -> AsyncIterator[Steps]:
    """Measure the steps of the running event loop while the block lasts."""
    steps = Steps()

    async def watch() -> None:
        while True:
            begun = time.thread_time()
            await asyncio.sleep(0)
            steps.seconds = max(steps.seconds, time.thread_time() - begun)
            steps.count += 1

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)  # A block without an `await` is measured as well.
    try:
        with without_collections():
            yield steps
            await asyncio.sleep(0)
    finally:
        watching.cancel()
