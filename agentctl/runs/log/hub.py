"""The reader of runs that other processes execute, one for all followers of this process.

A follower that has read the stored events of a run joins the hub. The hub reads the new events of
all its runs by one statement, `POLL_SECONDS` after the statement before it or as soon as a
notification names one of the runs, and keeps the newest events for its followers. It requests the
notifications from the workers of its runs (decision 93).

A late follower reads stored events by one statement at a time, as many batches as fit into 64 KB.
The reads are kept for a moment and shared by all followers of a process: the followers that come to
the same place next read nothing, and decode nothing. A follower that waits for no read is not
delayed by slower ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple

from agentctl import errors
from agentctl.interface.requests import StreamEvent
from agentctl.records.logs import RateLimitedLog
from agentctl.records.runs import RunState
from agentctl.runs.log.event_rows import decode_events
from agentctl.runs.states import is_settled
from agentctl.store.database import Database, Steps, run_topic, single_unit
from agentctl.store.repositories import events, run_reads
from agentctl.store.repositories.events import EventRow, FollowedRow, StoredPart
from agentctl.store.visibility import Visibility
from agentctl.work.event_loop import RETRY_LIMIT_SECONDS, retrieve_exception

KEPT_SECONDS = 10.0
"""Time for which a read is kept."""

PART_KEPT_BYTES = 2**21
"""Maximum size of the kept reads of all runs, unless a single one is larger."""

DECODED_KEPT_BYTES = 2**21
"""Maximum size of the kept events of batches, unless a single batch is larger."""

OVERHEAD_BYTES = 1_024
"""The size of a read or a batch without events, for these maxima."""

_Key = tuple[str, str]
"""The ids of a database and of a run."""


class _Read(NamedTuple):
    """A read of a run: the events after number `start` up to number `end`."""

    key: _Key
    start: int
    end: int

    began: float
    """The time at which it began, on the clock of the event loop."""

    size: int
    """Its size in bytes, with `OVERHEAD_BYTES`."""

    part: StoredPart

    def has_answer(self, position: int, requested: float) -> bool:
        """Return True if it answers a follower: with events, or because there are none yet.

        Args:
            position: number of the last event that the follower has.
            requested: the time of the request; only a later read shows that no event is missing.
        """
        if position < self.start:
            return False
        if position < self.end:
            return True
        return self.began >= requested and self.end >= self.part.newest


class StateReads:
    """The reads of the states of runs: callers that wait for a connection share one."""

    def __init__(self) -> None:
        self._waiting: dict[object, asyncio.Task[RunState | None]] = {}

    async def read(
        self, database: Database, run_id: str, visibility: Visibility
    ) -> RunState | None:
        """Return the state of a run by a read that begins after this call.

        Raises:
            Unavailable: the database does not answer.
        """
        key = (database.id, run_id, visibility.everyone or visibility.user_id)
        task = self._waiting.get(key)
        if task is None:
            task = self._start(key, database, run_id, visibility)

        # The other callers still wait for the read when this one is cancelled.
        return await asyncio.shield(task)

    def _start(
        self, key: object, database: Database, run_id: str, visibility: Visibility
    ) -> asyncio.Task[RunState | None]:
        @single_unit
        def read() -> Steps[RunState | None]:
            # It has a connection: later callers need a later read.
            self._waiting.pop(key, None)
            return (yield from run_reads.get_state(run_id, visibility))

        def forget(ended_task: asyncio.Task[RunState | None]) -> None:
            # A read that failed before it had a connection is still here.
            if self._waiting.get(key) is ended_task:
                del self._waiting[key]

        task = asyncio.create_task(database.read(read()))
        self._waiting[key] = task
        task.add_done_callback(forget)
        task.add_done_callback(retrieve_exception)
        return task


class StoredEvents:
    """The stored events of the runs that followers of this process have not read yet."""

    def __init__(self) -> None:
        # The events of the batches that were decoded last, the oldest first.
        self._decoded: dict[EventRow, list[StreamEvent]] = {}
        self._decoded_size = 0
        # The read under way of each run.
        self._running: dict[_Key, asyncio.Task[_Read]] = {}
        # The kept reads by run, and those of all runs; the oldest first.
        self._kept: defaultdict[_Key, deque[_Read]] = defaultdict(deque)
        self._oldest: deque[_Read] = deque()

        self.size = 0
        """Bytes of the kept reads."""

    async def read(self, database: Database, run_id: str, position: int) -> tuple[StoredPart, bool]:
        """Return a part of a run with all that is stored after a position, limited in size.

        It may also have batches before the position.

        Returns:
            The part, and True if its state was read after this call.

        Raises:
            Unavailable: the database does not answer.
        """
        key = (database.id, run_id)
        requested = asyncio.get_running_loop().time()
        read = self._find(key, position, requested)
        while read is None:
            running = self._running.get(key)
            if running is None:
                running = asyncio.create_task(self._read(database, key, position))
                self._running[key] = running
                running.add_done_callback(retrieve_exception)

            # The other followers still wait for the read when this one is cancelled.
            ended_read = await asyncio.shield(running)
            if ended_read.has_answer(position, requested):
                # Not by `_find`: it may be too large to be kept together with others.
                read = ended_read
            else:
                # It was the read of a follower at another position, or has begun too early.
                read = self._find(key, position, requested)

        return read.part, read.began >= requested

    def decode(self, row: EventRow) -> list[StreamEvent]:
        """Return the events of a batch. The last batches are kept for other followers."""
        decoded_events = self._decoded.get(row)
        if decoded_events is not None:
            return decoded_events

        decoded_events = list(decode_events(row))
        self._decoded[row] = decoded_events
        self._decoded_size += _count_bytes(decoded_events)
        while self._decoded_size > DECODED_KEPT_BYTES and len(self._decoded) > 1:
            oldest_row = next(iter(self._decoded))
            self._decoded_size -= _count_bytes(self._decoded.pop(oldest_row))
        return decoded_events

    def _find(self, key: _Key, position: int, requested: float) -> _Read | None:
        for read in self._kept.get(key, ()):
            if read.has_answer(position, requested):
                return read
        return None

    async def _read(self, database: Database, key: _Key, position: int) -> _Read:
        _, run_id = key
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            part = await database.read(events.read_part(run_id, position))
        finally:
            del self._running[key]

        end = part.batches[-1].last_seq if part.batches else position
        size = OVERHEAD_BYTES + sum(len(batch.events) for batch in part.batches)
        read = _Read(key, position, end, began, size, part)

        self._kept[key].append(read)
        self._oldest.append(read)
        self.size += size
        while self.size > PART_KEPT_BYTES and len(self._oldest) > 1:
            self._drop_oldest()
        loop.call_later(KEPT_SECONDS, self._drop, read)
        return read

    def _drop(self, read: _Read) -> None:
        # Reads of other runs that are as old go with it: their own timers find nothing then.
        while self._oldest and self._oldest[0].began <= read.began:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        read = self._oldest.popleft()
        kept_reads = self._kept[read.key]
        # The oldest read of all is also the oldest of its run.
        kept_reads.popleft()
        if not kept_reads:
            del self._kept[read.key]
        self.size -= read.size


def _count_bytes(decoded_events: list[StreamEvent]) -> int:
    return OVERHEAD_BYTES + sum(len(event.data) for event in decoded_events)


CHECK_SECONDS = 0.02
"""Interval of the checks for notifications, which cost no statement."""

POLL_SECONDS = 0.25
"""Maximum time between two reads of a run."""

JOINED_SECONDS = 0.15
"""Time after which a run is read together with one that must be read now."""

READ_SECONDS = {"sqlite": CHECK_SECONDS, "postgres": 0.09}
"""Mean time between two reads, by engine; a few may follow each other at once."""

BURST = 2
"""Number of reads that may follow each other at once."""

RETRY_SECONDS = 1.0
"""Pause after a database did not answer."""

REQUEST_SECONDS = 25.0
"""Time between two requests for the notifications of a run, which a worker sends for a minute."""

KEPT_BYTES = 65_536
"""Maximum size of the events of a run that are kept, unless a single batch is larger."""

_rate_limited = RateLimitedLog(logging.getLogger("agentctl.runs"))


class News(NamedTuple):
    """New events of a run."""

    events: list[StreamEvent] | None
    """The events after the position of the follower.

    None if some are not kept any more, or if the run was deleted: the follower has to read the
    database itself.
    """

    settled: bool
    """True if the run has ended or is paused, after these events."""


class _KeptBatch(NamedTuple):
    """The events of a batch after the position at which it was read."""

    last_seq: int
    size: int
    events: list[StreamEvent]


class _Run:
    """A run with its followers. Times are seconds on the clock of the event loop."""

    def __init__(self, run_id: str, version: Callable[[], int], position: int) -> None:
        self.run_id = run_id

        self.version = version
        """Returns a number that changes with each notification about the run."""

        self.seen_version: int | None = None
        """This number at the last read; None before the first read."""

        self.position = position
        """Number of the last event that was read."""

        self.floor = position
        """All events after this number and up to `position` are kept."""

        self.kept_batches: deque[_KeptBatch] = deque()

        self.size = 0
        """Bytes of the kept events."""

        self.settled_at: float | None = None
        """Time of the read that found the run settled or deleted; None before."""

        self.is_deleted = False

        self.read_at = float("-inf")
        """Time of the last read."""

        self.requested_at = float("-inf")
        """Time of the last request for notifications."""

        self.followers = 0
        """Number of its followers."""

        self.changed = asyncio.Event()
        """Set when there is news; then it is replaced."""

    def add(self, row: EventRow) -> None:
        """Keep the events of a batch after `position`."""
        new_events = [event for event in decode_events(row) if event.seq > self.position]
        size = sum(len(event.data) for event in new_events)
        self.kept_batches.append(_KeptBatch(row.last_seq, size, new_events))
        self.position = row.last_seq
        self.size += size

        while self.size > KEPT_BYTES and len(self.kept_batches) > 1:
            dropped_batch = self.kept_batches.popleft()
            self.floor = dropped_batch.last_seq
            self.size -= dropped_batch.size

    def add_rows(self, rows: list[FollowedRow]) -> None:
        """Keep the events of the batches that a read has found after `position`."""
        for row in rows:
            if row.batch is not None and row.batch.last_seq > self.position:
                self.add(row.batch)

    def wake(self) -> None:
        """Let all followers look for news."""
        self.changed.set()
        self.changed = asyncio.Event()


class FollowedRun:
    """One follower of a run. Close it at the end."""

    def __init__(self, reader: _Reader, run: _Run) -> None:
        self._reader = reader
        self._run = run
        self._joined_at = asyncio.get_running_loop().time()
        self._closed = False

    async def wait(self, position: int, timeout: float) -> News | None:
        """Return the events after a position as soon as there are any, or the run has settled.

        Args:
            position: number of the last event that the follower has.
            timeout: maximum time in seconds; the result is None after it.

        Raises:
            Unavailable: the database does not answer for `RETRY_LIMIT_SECONDS`.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    # Before the look: news that arrive after it set this event.
                    changed = self._run.changed
                    news = self._find_news(position)
                    if news is not None:
                        return news
                    await changed.wait()
        except TimeoutError:
            return None

    def _find_news(self, position: int) -> News | None:
        run = self._run
        # A run that a read before has found paused may continue since.
        settled = run.settled_at is not None and run.settled_at >= self._joined_at
        if position < run.floor or (settled and run.is_deleted):
            return News(None, settled)

        # From the newest batch back, so that the cost depends only on what the follower lacks.
        newest_first = reversed(run.kept_batches)
        new_batches = list(takewhile(lambda batch: batch.last_seq > position, newest_first))
        new_events: list[StreamEvent] = []
        for batch in reversed(new_batches):
            new_events += [event for event in batch.events if event.seq > position]
        if new_events or settled:
            return News(new_events, settled)

        self._reader.check()
        return None

    def close(self) -> None:
        """Leave the run."""
        if not self._closed:
            self._closed = True
            self._reader.leave(self._run)


class Hub:
    """The readers of all databases of a service."""

    def __init__(self) -> None:
        self._readers: dict[str, _Reader] = {}

    def join(self, database: Database, run_id: str, position: int | None) -> FollowedRun:
        """Follow a run that another process executes.

        Args:
            position: number of the last stored event that the follower has; None to wait for the
                end or the pause of the run only.
        """
        reader = self._readers.get(database.id)
        if reader is None:
            reader = _Reader(database)
            self._readers[database.id] = reader
        return reader.join(run_id, position)


class _Reader:
    """The reader of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # By id, and True if the followers of the run read its events.
        self._runs: dict[tuple[str, bool], _Run] = {}
        self._task: asyncio.Task[None] | None = None
        self._clock = asyncio.get_running_loop().time
        self._interval = READ_SECONDS[database.load().kind]
        self._next_read = 0.0
        self._failing_since: float | None = None

    def join(self, run_id: str, after: int | None) -> FollowedRun:
        """Follow a run; see `Hub.join`. Close the result at the end."""
        # Followers that wait for the end only share a run that reads no events.
        has_events = after is not None
        position = events.LAST_POSITION if after is None else after
        run = self._runs.get((run_id, has_events))
        if run is None:
            version = self._database.watch(run_topic(run_id))
            run = _Run(run_id, version, position)
            self._runs[run_id, has_events] = run

        # The next read begins after this moment, so it finds what the follower has not read.
        run.read_at = float("-inf")
        run.followers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._read_until_left())
        return FollowedRun(self, run)

    def leave(self, run: _Run) -> None:
        """Remove a follower of a run; without followers of any run the reads end."""
        run.followers -= 1
        if run.followers:
            return

        self._runs = {key: other for key, other in self._runs.items() if other is not run}
        if not self._runs and self._task is not None:
            self._task.cancel()
            self._task = None

    def check(self) -> None:
        """Raise Unavailable if the database has not answered for too long."""
        since = self._failing_since
        if since is not None and self._clock() - since >= RETRY_LIMIT_SECONDS:
            raise errors.Unavailable(
                "The database does not answer", cause=f"database {self._database.id!r}"
            )

    async def _read_until_left(self) -> None:
        """Read the runs that are due, again and again. `leave` cancels it."""
        while True:
            try:
                if self._clock() >= self._next_read:
                    due_runs = self._find_due()
                    if due_runs:
                        await self._read(due_runs)
                        self._failing_since = None
                await asyncio.sleep(CHECK_SECONDS)
            except errors.AgentctlError:
                _rate_limited.log("events of runs of other processes could not be read yet")
                if self._failing_since is None:
                    self._failing_since = self._clock()

                # Their followers look whether the database has failed for too long.
                for run in self._runs.values():
                    run.wake()
                await asyncio.sleep(RETRY_SECONDS)

    def _find_due(self) -> list[_Run]:
        """Return the runs to read now, first those that have waited longest.

        If one of them must be read now, other runs that are soon due share its statement. Without
        such a run the result is empty.
        """
        now = self._clock()
        must_read = False
        due_runs = list[_Run]()
        for run in self._runs.values():
            age = now - run.read_at
            version = run.version()
            if version != run.seen_version or age >= POLL_SECONDS:
                must_read = True
            elif age < JOINED_SECONDS:
                continue

            run.seen_version = version
            due_runs.append(run)

        if not must_read:
            return []
        return sorted(due_runs, key=lambda run: run.read_at)

    async def _read(self, due_runs: list[_Run]) -> None:
        for first in range(0, len(due_runs), events.MAXIMUM_FOLLOWED):
            runs = due_runs[first : first + events.MAXIMUM_FOLLOWED]
            now = self._clock()
            # An idle reader has saved up `BURST` reads, not more.
            self._next_read = max(self._next_read, now - BURST * self._interval) + self._interval

            positions = [(run.run_id, run.position) for run in runs]
            # Before the read: a follower that joins during it asks for another one.
            for run in runs:
                run.read_at = now
            rows = await self._database.read(events.list_followed(positions))
            self._distribute(runs, positions, rows, now)

    def _distribute(
        self,
        runs: list[_Run],
        positions: list[tuple[str, int]],
        rows: list[FollowedRow],
        started: float,
    ) -> None:
        """Give the rows of a read to its runs, and wake the followers with news.

        Args:
            positions: the id of each run and its position before the read.
            rows: rows with the index of their run in `runs`; a run without rows was deleted.
            started: the time of the read.
        """
        is_complete = len(rows) < events.MAXIMUM_FOLLOWED_ROWS
        rows_by_number: defaultdict[int, list[FollowedRow]] = defaultdict(list)
        for row in rows:
            rows_by_number[row.number].append(row)

        run_ids_by_owner: defaultdict[str, list[str]] = defaultdict(list)
        for number, (run, (_, position_before)) in enumerate(zip(runs, positions, strict=True)):
            run_rows = rows_by_number[number]
            run.add_rows(run_rows)

            first_row = run_rows[0] if run_rows else None
            if not is_complete:
                # The rows of this run may be among those that were left out: read it again soon.
                run.read_at = float("-inf")
            elif first_row is None or is_settled(first_row.status):
                run.settled_at = started
                run.is_deleted = first_row is None
            elif first_row.owner and started - run.requested_at > REQUEST_SECONDS:
                run.requested_at = started
                run_ids_by_owner[first_row.owner].append(run.run_id)

            if run.position > position_before or run.settled_at == started:
                run.wake()

        for owner, run_ids in run_ids_by_owner.items():
            self._database.request_announcements(owner, run_ids)
