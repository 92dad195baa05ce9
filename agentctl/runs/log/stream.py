"""The event stream of one live run: numbers its events and delivers them from memory.

Memory keeps a window: all events that are not stored yet, and up to `WINDOW_BYTES` of stored ones.
A follower that falls behind the window reads the database (`runs.follow.follow`), so that a slow
follower costs no memory.

The recorder (`runs.log.recorder`) stores the events in batches while the run executes. The last
batch is stored with the final status (docs/decisions/0014).

Events are published in the order in which they happen. The start and the end of a member that a
library executes happen before they are stored, and are published afterwards: each has a place
(`Stream.reserve`), for which later events wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import cached_property

from agentctl.interface.requests import StreamEvent
from agentctl.records.times import now
from agentctl.runs.log.event_rows import Piece, encode_events
from agentctl.store.repositories.events import Batch

WINDOW_BYTES = 262_144
"""Maximum size of the stored events that stay in memory for followers."""

BATCH_BYTES = 65_536
"""Maximum size of the events of one stored batch, unless a single event is larger."""

PORTION_EVENTS = 4_096
"""Maximum number of events that are taken at a time. To copy all that wait, again and again, would
take quadratic time."""


class EventPlace:
    """A place in the order of the events, which is open until its event is published.

    Args:
        start: the place of the start of a member, whose event this is; None for others.

    Attributes:
        at: the time in microseconds at which it was reserved.
    """

    __slots__ = ("at", "event", "is_open", "start")

    def __init__(
        self, event: tuple[str, bytes, Piece | None] | None = None, start: EventPlace | None = None
    ) -> None:
        self.event = event
        self.is_open = event is None
        self.start = start
        self.at: int | None = None


def limit_size(portion: list[StreamEvent], limit: int) -> list[StreamEvent]:
    """Return the first events, of at most `limit` bytes unless the first one is larger."""
    size = 0
    for count, event in enumerate(portion):
        size += len(event.data)
        if count and size > limit:
            return portion[:count]
    return portion


class Stream:
    """The events of a root run and of its members, for any number of followers.

    Args:
        attempt: the store refuses the events of another one.
        recorded: False for a plain run: no client can follow it while it executes, so its events
            are not created at all (docs/decisions/0014).
        first: number of the first event: those of earlier legs of the run are stored.

    Attributes:
        closed: True once the last event has been published.
        unstored_bytes: size of the events that are only in memory.
        on_publish: callback after each event, with the name of the event; set by the recorder.
    """

    def __init__(self, run_id: str, attempt: int = 1, *, recorded: bool, first: int = 0) -> None:
        self.run_id = run_id
        self._attempt = attempt
        self.recorded = recorded
        self.next = first
        self.closed = False
        self.unstored_bytes = 0
        self.on_publish: Callable[[str], None] | None = None
        self._sealed = False
        self._abandoned = False
        self._events: list[StreamEvent] = []
        self._pieces: list[Piece | None] = []  # of the events that are not stored
        self._first = first
        self._bytes = 0
        self._stored = first
        self._waiting: set[asyncio.Future[None]] = set()
        self._places: deque[EventPlace] = deque()

    def publish(
        self,
        name: str,
        data: bytes,
        piece: Piece | None = None,
        *,
        place: EventPlace | None = None,
        start: EventPlace | None = None,
    ) -> None:
        """Add an event. After `seal`, do nothing: the last event stays the last one.

        Args:
            piece: the piece of text to store instead of the data; None to store the data.
            place: its place if one was reserved.
            start: the place of the start of its run: without a start it is not published.
        """
        if not self.recorded or self._sealed:
            return
        if place is not None and place.is_open:
            place.event, place.is_open = (name, data, piece), False
            self._publish_places()
        elif self._places:
            self._places.append(EventPlace((name, data, piece), start))
        elif start is None or start.event is not None:
            self._publish(name, data, piece)

    def reserve(self) -> EventPlace:
        """Reserve the place of an event that is published later; later events wait for it."""
        place = EventPlace()
        place.at = now()
        if self.recorded and not self._sealed:
            self._places.append(place)
        return place

    def leave(self, *places: EventPlace | None) -> None:
        """Publish nothing in places that are still open."""
        for place in places:
            if place is not None:
                place.is_open = False
        self._publish_places()

    def _publish_places(self) -> None:
        while self._places and not self._places[0].is_open:
            place = self._places.popleft()
            has_start = place.start is None or place.start.event is not None
            if place.event is not None and has_start:
                self._publish(*place.event)

    def _publish(self, name: str, data: bytes, piece: Piece | None) -> None:
        self._add(name, data, piece)
        if self.on_publish is not None:
            self.on_publish(name)
        self._notify()

    def seal(self) -> None:
        """Accept no more events except the last one, which `close` adds."""
        self.leave(*self._places)
        self._sealed = True

    def close(self, last: tuple[str, bytes] | None) -> None:
        """Add the last event, if any, and end the stream for followers that have read it all."""
        self.seal()
        if last is not None and self.recorded and not self.closed:
            self._add(*last)
        self.closed = True
        self._notify()

    def abandon(self) -> None:
        """Send followers to the database for all further events.

        Called when another process stored a different final status: the database then has the
        events and numbers that every other follower receives. No effect on a closed stream.
        """
        if not self.closed:
            self._abandoned = True
            self.close(None)

    def events_from(self, number: int) -> list[StreamEvent] | None:
        """Return the next events from `number` on, at most `PORTION_EVENTS`; None if they are only
        in the database.
        """
        if self._abandoned or number < self._first:
            return None
        start = number - self._first
        return self._events[start : start + PORTION_EVENTS]

    async def wait_for_change(self) -> None:
        waiter = self._loop.create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    def next_batch(self) -> Batch | None:
        """Return the oldest events that are not stored, at least one; None if all are stored."""
        start = self._stored - self._first
        batch = limit_size(self._events[start : start + PORTION_EVENTS], BATCH_BYTES)
        return self._build_batch(batch, self._pieces[: len(batch)]) if batch else None

    def last_batch(self, last: tuple[str, bytes]) -> Batch:
        """Return all events that are not stored, followed by the last event.

        The stream does not publish the last event here: followers get it after it is stored.
        """
        end = StreamEvent(self._first + len(self._events), *last)
        waiting = [*self._events[self._stored - self._first :], end]
        return self._build_batch(waiting, [*self._pieces, None])

    def unstored_batch(self) -> Batch | None:
        """Return all events that are not stored, however large; None if all are."""
        waiting = self._events[self._stored - self._first :]
        return self._build_batch(waiting, self._pieces) if waiting else None

    def _build_batch(self, portion: list[StreamEvent], pieces: list[Piece | None]) -> Batch:
        lines = encode_events(self.run_id, portion, pieces)
        return Batch(self.run_id, self._attempt, portion[0].seq, portion[-1].seq, lines)

    def mark_stored(self, last: int) -> None:
        """Mark the events up to number `last` as stored and drop those outside the window."""
        for event in self._events[self._stored - self._first : last + 1 - self._first]:
            self.unstored_bytes -= len(event.data)
        del self._pieces[: max(0, last + 1 - self._stored)]
        self._stored = max(self._stored, last + 1)
        dropped = 0
        while self._bytes > WINDOW_BYTES and self._first + dropped < self._stored:
            self._bytes -= len(self._events[dropped].data)
            dropped += 1
        if dropped:
            del self._events[:dropped]
            self._first += dropped

    def _add(self, name: str, data: bytes, piece: Piece | None = None) -> None:
        self._events.append(StreamEvent(self.next, name, data))
        self._pieces.append(piece)
        self._bytes += len(data)
        self.unstored_bytes += len(data)
        self.next += 1

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # Kept as in `Turns`.
        return asyncio.get_running_loop()

    def _notify(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
