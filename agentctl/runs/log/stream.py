"""The event stream of one live run, and the recorder that stores the streams of a process.

Memory keeps a window: all events that are not stored yet, and up to `WINDOW_BYTES` of stored ones.
A follower that falls behind the window reads the database (`runs.follow.follow`), so that a slow
follower costs no memory.

Events are published in the order in which they happen. The start and the end of a member that a
library executes happen before they are stored, and are published afterwards: each has a place
(`Stream.reserve`), for which later events wait.

The events of a run are stored within `BATCH_SECONDS`, when `BATCH_BYTES` are waiting, or after any
event that is not content. Each run has one write at a time, and so has each database: the batches
of all runs that arrive meanwhile share the next statement. So a slow database receives larger
statements instead of more of them. The last batch is stored with the final status.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from functools import cached_property
from weakref import WeakKeyDictionary

from agentctl import errors
from agentctl.interface.requests import StreamEvent
from agentctl.records.events import CONTENT_NAMES
from agentctl.records.logs import RateLimitedLog
from agentctl.records.times import now
from agentctl.runs.log.event_rows import Piece, encode_events
from agentctl.store.database import Database
from agentctl.store.repositories import events
from agentctl.store.repositories.events import Batch
from agentctl.store.versions import read_current_version

WINDOW_BYTES = 262_144
"""Maximum size of the stored events that stay in memory for followers."""

BATCH_BYTES = 65_536
"""Maximum size of the events of one stored batch, unless a single event is larger."""

PORTION_EVENTS = 4_096
"""Maximum number of events that are taken at a time.

To copy all events that wait, again and again, would take quadratic time.
"""


class EventPlace:
    """A place in the order of the events, which is open until its event is published.

    Args:
        event: name, data and piece of the event; None to reserve the place.
        start: for an event of a member, the place of the start of the member; None otherwise.
    """

    __slots__ = ("at", "event", "is_open", "start")

    def __init__(
        self, event: tuple[str, bytes, Piece | None] | None = None, start: EventPlace | None = None
    ) -> None:
        self.event = event
        self.is_open = event is None
        self.start = start

        self.at: int | None = None
        """The time in microseconds UTC at which it was reserved; None if it was not."""


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
        attempt: the attempt of the root run; the store refuses the events of another attempt.
        recorded: False for a plain run: no client can follow it while it executes, so its events
            are not created at all (docs/contract.md "Events").
        first: number of the first event; the events of earlier legs of the run are stored.
    """

    def __init__(self, run_id: str, attempt: int = 1, *, recorded: bool, first: int = 0) -> None:
        self.run_id = run_id
        self._attempt = attempt
        self.recorded = recorded

        self.next = first
        """Number of the next event."""

        self.closed = False
        """True once the last event has been published."""

        self.unstored_bytes = 0
        """Size of the events that are only in memory."""

        self.on_publish: Callable[[str], None] | None = None
        """Called after each event, with the name of the event; set by the recorder."""

        # The window: its events, the number of the first one, and their size.
        self._events: list[StreamEvent] = []
        self._first = first
        self._bytes = 0

        # The number of the first event that is not stored, and the pieces of the events from it on.
        self._stored = first
        self._pieces: list[Piece | None] = []

        # The places from the first open one on, in the order of their events.
        self._places: list[EventPlace] = []
        # The followers that wait for a change.
        self._waiting: set[asyncio.Future[None]] = set()
        self._sealed = False
        self._abandoned = False

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
            place: the place that was reserved for it; None if none was.
            start: the place of the start of its run: without a start it is not published.
        """
        if not self.recorded or self._sealed:
            return

        if place is not None and place.is_open:
            place.event = (name, data, piece)
            place.is_open = False
            self._publish_places()
        elif self._places:
            # An earlier place is open: wait behind it.
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
        """Publish the events of all places before the first open one."""
        ready_places = list(itertools.takewhile(lambda place: not place.is_open, self._places))
        # Before the callback of an event: it may publish another one.
        del self._places[: len(ready_places)]

        for place in ready_places:
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

    def close(self, last_event: tuple[str, bytes] | None) -> None:
        """Add the last event, if any, and end the stream for followers that have read it all."""
        self.seal()
        if last_event is not None and self.recorded and not self.closed:
            self._add(*last_event)
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
        """Return the next events from `number` on, at most `PORTION_EVENTS`.

        None if they are only in the database.
        """
        if self._abandoned or number < self._first:
            return None

        start = number - self._first
        return self._events[start : start + PORTION_EVENTS]

    async def wait_for_change(self) -> None:
        """Wait until an event is published, or the stream is closed."""
        waiter = self._loop.create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    def next_batch(self) -> Batch | None:
        """Return the oldest events that are not stored, at least one; None if all are stored."""
        start = self._stored - self._first
        portion = limit_size(self._events[start : start + PORTION_EVENTS], BATCH_BYTES)
        if not portion:
            return None
        return self._build_batch(portion, self._pieces[: len(portion)])

    def last_batch(self, last_event: tuple[str, bytes]) -> Batch:
        """Return all events that are not stored, followed by the last event.

        The stream does not publish the last event here: followers get it after it is stored.
        """
        end = StreamEvent(self._first + len(self._events), *last_event)
        portion = [*self._events[self._stored - self._first :], end]
        return self._build_batch(portion, [*self._pieces, None])

    def unstored_batch(self) -> Batch | None:
        """Return all events that are not stored, however large; None if all are stored."""
        portion = self._events[self._stored - self._first :]
        if not portion:
            return None
        return self._build_batch(portion, self._pieces)

    def _build_batch(self, portion: list[StreamEvent], pieces: list[Piece | None]) -> Batch:
        lines = encode_events(self.run_id, portion, pieces)
        return Batch(self.run_id, self._attempt, portion[0].seq, portion[-1].seq, lines)

    def mark_stored(self, last_seq: int) -> None:
        """Mark the events up to a number as stored, and drop events to shrink the window."""
        first_unstored = max(self._stored, last_seq + 1)
        for event in self._events[self._stored - self._first : first_unstored - self._first]:
            self.unstored_bytes -= len(event.data)
        del self._pieces[: first_unstored - self._stored]
        self._stored = first_unstored

        # Only stored events may leave memory: followers read them in the database.
        dropped_count = 0
        while self._bytes > WINDOW_BYTES and self._first + dropped_count < self._stored:
            self._bytes -= len(self._events[dropped_count].data)
            dropped_count += 1

        if dropped_count:
            del self._events[:dropped_count]
            self._first += dropped_count

    def _add(self, name: str, data: bytes, piece: Piece | None = None) -> None:
        self._events.append(StreamEvent(self.next, name, data))
        self._pieces.append(piece)
        self._bytes += len(data)
        self.unstored_bytes += len(data)
        self.next += 1

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # Kept: in Python 3.11 a system call is necessary to find the running event loop.
        return asyncio.get_running_loop()

    def _notify(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


BATCH_SECONDS = 0.1
"""Interval of the writes.

All runs of a process write at the same ticks of its clock, so that their batches share one
statement.
"""

VERSION_SECONDS = 60.0
"""Interval of the reads of the schema version until the upgrade of the database is finished."""

RETRY_SECONDS = 1.0
"""Pause after a write that failed because the database was unavailable."""

_log = logging.getLogger("agentctl.runs")
_rate_limited = RateLimitedLog(_log)

_writers: WeakKeyDictionary[Database, _EventWriter] = WeakKeyDictionary()


class _EventWriter:
    """Appends the batches of the runs of one database."""

    def __init__(self) -> None:
        # The batches of the next write, each with the result of `append`.
        self._waiting: list[tuple[events.Batch, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None
        self._next_look = 0.0

    async def append(self, database: Database, batch: events.Batch) -> bool:
        """Store a batch; return False if its run has ended, was deleted, or has another attempt.

        Raises:
            Unavailable: the database does not answer.
        """
        is_stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((batch, is_stored))
        if self._task is None:
            self._task = asyncio.create_task(self._write(database))
        return await is_stored

    async def _write(self, database: Database) -> None:
        """Write until no batch waits: the batches that arrive during a write share the next one.

        The timers of a tick are due in one turn of the event loop, so the batches of a tick are in
        the first write.
        """
        while self._waiting:
            group = self._waiting[: events.MAXIMUM_BATCHES]
            del self._waiting[: events.MAXIMUM_BATCHES]
            work = events.append_batches([batch for batch, _ in group])

            try:
                stored_run_ids = await database.write(work)
            except Exception as error:
                for _, waiter in group:
                    if not waiter.done():
                        waiter.set_exception(error)
            else:
                for run_id in stored_run_ids:
                    database.announce(run_id)
                for batch, waiter in group:
                    if not waiter.done():
                        waiter.set_result(batch.run_id in stored_run_ids)

            await self._look_at_version(database)

        self._task = None

    async def _look_at_version(self, database: Database) -> None:
        """Notice that the operator has finished the upgrade of a database."""
        clock = asyncio.get_running_loop().time
        if database.version.allows_text_rows or clock() < self._next_look:
            return

        self._next_look = clock() + VERSION_SECONDS
        with contextlib.suppress(errors.AgentctlError):
            database.version = await database.read(read_current_version())


class StreamRecorder:
    """Stores the events that a stream publishes."""

    def __init__(self, stream: Stream, database: Database) -> None:
        self._stream = stream
        self._database = database
        self._writer = _writers.setdefault(database, _EventWriter())
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._write_now = False
        self._ended = False
        stream.on_publish = self._schedule

    async def end(self) -> None:
        """Stop writing. The caller stores the remaining events with the final status."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait({self._writing})

    def _schedule(self, name: str) -> None:
        self._write_now = self._write_now or name not in CONTENT_NAMES
        self._plan_write()

    def _plan_write(self) -> None:
        """Write now, or at the next tick."""
        if self._ended or self._writing is not None:
            return

        if self._write_now or self._stream.unstored_bytes >= BATCH_BYTES:
            self._write()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            next_tick = (loop.time() // BATCH_SECONDS + 1) * BATCH_SECONDS
            self._timer = loop.call_at(next_tick, self._write)

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # A write that failed while `end` waited for it has set the timer once more.
        if not self._ended:
            self._writing = asyncio.create_task(self._store())

    async def _store(self) -> None:
        # Before the write: an event that arrives during it sets this again.
        self._write_now = False
        # Events that arrive during these writes wait for the next tick, to share its transaction.
        first_new_seq = self._stream.next

        try:
            while (batch := self._stream.next_batch()) and batch.first_seq < first_new_seq:
                if self._ended or not await self._writer.append(self._database, batch):
                    # The run has ended or was deleted, or another worker owns it.
                    self._ended = True
                    break
                self._stream.mark_stored(batch.last_seq)
        except errors.Unavailable:
            _rate_limited.log("events of runs could not be stored yet")
            self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._write)
        except Exception:
            _log.exception("run %s: its events are not stored any more", self._stream.run_id)
            self._ended = True
        finally:
            self._writing = None

        if self._timer is None and self._stream.unstored_bytes:
            self._plan_write()
