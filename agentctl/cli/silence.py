"""Events with the pauses between them: who waits for something learns that nothing comes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from agentctl.operations import StreamEvent

__all__ = ["Silence", "with_silences"]

WAITING = 64
"""Events that were received and not shown yet, at most."""


class Silence(Enum):
    """Stands where an event would."""

    SILENCE = "silence"


async def with_silences(
    events: AsyncIterator[StreamEvent], seconds: float
) -> AsyncGenerator[StreamEvent | Silence, None]:
    """The events, and `Silence.SILENCE` whenever none has come for so many seconds.

    What `events` raises is raised behind the last event. It is read, and closed, by one task.
    """
    import asyncio

    queue: asyncio.Queue[StreamEvent | Exception | None] = asyncio.Queue(WAITING)
    reading = asyncio.create_task(_read(events, queue))
    try:
        while True:
            item: StreamEvent | Exception | Silence | None = Silence.SILENCE
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    item = await queue.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _read(
    events: AsyncIterator[StreamEvent], queue: asyncio.Queue[StreamEvent | Exception | None]
) -> None:
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                await queue.put(event)
    except Exception as failure:
        await queue.put(failure)
    else:
        await queue.put(None)
