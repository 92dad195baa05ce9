"""The events of one live run: numbered when emitted, delivered from memory to who follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from agentctl.operations import StreamEvent

__all__ = ["Stream"]


class Stream:
    """An append-only list of events with any number of followers.

    Followers share the list, so a slow one costs no memory of its own; the list lives as long as
    the run, and the run's size is bounded (`limits.run_bytes`).
    """

    def __init__(self) -> None:
        self._events: list[StreamEvent] = []
        self._closed = False
        self._changed = asyncio.Event()

    def publish(self, name: str, data: bytes) -> None:
        """Add an event. After the close nothing is added: the last event stays the last."""
        if self._closed:
            return
        self._events.append(StreamEvent(len(self._events), name, data))
        self._wake()

    def close(self) -> None:
        """No more events: followers end once they have read what is there."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncIterator[StreamEvent]:
        """Every event from the first one on, until the stream is closed."""
        position = 0
        while True:
            while position < len(self._events):
                yield self._events[position]
                position += 1
            if self._closed:
                return
            await self._changed.wait()
