"""The events of one live run: numbered when emitted, delivered from memory to who follows.

Memory holds a window: what is not stored yet, and up to `WINDOW_BYTES` of what is. A follower that
falls behind it reads the database (`runs.follow`), so a slow one costs no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from agentctl.operations import StreamEvent

__all__ = ["BATCH_BYTES", "Batch", "Stream", "encode_lines"]

WINDOW_BYTES = 262_144
"""Bytes of stored events that stay in memory for those who follow closely."""

BATCH_BYTES = 65_536
"""Bytes of events in one stored batch, unless a single event is larger (design.md "Runs")."""


class Batch(NamedTuple):
    """Events that are stored together.

    Attributes:
        first, last: numbers of its events.
        lines: one line an event, `<name> <data>`; the stored form.
    """

    first: int
    last: int
    lines: str


class Stream:
    """The events of a root run, its members' included, for any number of followers.

    Args:
        recorded: whether events are kept at all: those of a plain run, which nobody may follow
            while it goes on, are not even made.

    Attributes:
        next: number of the next event.
        closed: whether the last event has been published.
        unstored_bytes: of the events that are only in memory.
        published: is called after each event, with its name; the recorder sets it.
    """

    def __init__(self, *, recorded: bool) -> None:
        self.recorded = recorded
        self.next = 0
        self.closed = False
        self.unstored_bytes = 0
        self.on_publish: Callable[[str], None] | None = None
        self._sealed = False
        self._abandoned = False
        self._events: list[StreamEvent] = []
        self._first = 0
        self._bytes = 0
        self._stored = 0
        self._changed = asyncio.Event()

    def publish(self, name: str, data: bytes) -> None:
        """Add an event. After `seal` nothing is added: the last event stays the last."""
        if not self.recorded or self._sealed:
            return
        self._add(name, data)
        if self.on_publish is not None:
            self.on_publish(name)
        self._wake()

    def seal(self) -> None:
        """Take no more events but the last one."""
        self._sealed = True

    def close(self, last: tuple[str, bytes] | None) -> None:
        """Add the last event, if there is one; followers end once they have read what is there."""
        self.seal()
        if last is not None and self.recorded and not self.closed:
            self._add(*last)
        self.closed = True
        self._wake()

    def abandon(self) -> None:
        """Another end than the one from here is stored: followers find the rest in the database,
        under the numbers that everybody else is told. Nothing happens once this one was told.
        """
        if not self.closed:
            self._abandoned = True
            self.close(None)

    def since(self, number: int) -> list[StreamEvent] | None:
        """The events from a number on; None when those are to be read in the database."""
        if self._abandoned or number < self._first:
            return None
        return self._events[number - self._first :]

    async def changed(self) -> None:
        """Wait for the next event, or for the close."""
        await self._changed.wait()

    def next_batch(self, most: int = BATCH_BYTES) -> Batch | None:
        """The oldest events that are only in memory, up to `most` bytes but at least one."""
        waiting = self._events[self._stored - self._first :]
        if not waiting:
            return None
        size = count = 0
        for event in waiting:
            size += len(event.data)
            if count and size > most:
                break
            count += 1
        return Batch(waiting[0].seq, waiting[count - 1].seq, encode_lines(waiting[:count]))

    def rest(self, last: tuple[str, bytes]) -> Batch:
        """All that is only in memory, and the last event, which nobody is told before it is
        stored."""
        end = StreamEvent(self._first + len(self._events), *last)
        waiting = [*self._events[self._stored - self._first :], end]
        return Batch(waiting[0].seq, end.seq, encode_lines(waiting))

    def stored(self, last: int) -> None:
        """Note that events up to this number are stored, and forget what the window need not hold.

        A follower behind the window finds them in the database.
        """
        for event in self._events[self._stored - self._first : last + 1 - self._first]:
            self.unstored_bytes -= len(event.data)
        self._stored = max(self._stored, last + 1)
        dropped = 0
        while self._bytes > WINDOW_BYTES and self._first + dropped < self._stored:
            self._bytes -= len(self._events[dropped].data)
            dropped += 1
        if dropped:
            del self._events[:dropped]
            self._first += dropped

    def _add(self, name: str, data: bytes) -> None:
        self._events.append(StreamEvent(self.next, name, data))
        self._bytes += len(data)
        self.unstored_bytes += len(data)
        self.next += 1

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def encode_lines(events: list[StreamEvent]) -> str:
    """The stored form of some events. JSON has no line feeds of its own, names have no spaces."""
    return "".join(f"{event.name} {event.data.decode()}\n" for event in events)
