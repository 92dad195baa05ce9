"""Followers: read the events of a run from any event on, in any process, without gap or repeat.

In the process that executes the run, the events come from memory. Events that have left memory,
and those of other processes, come from the database as they are committed there. Both have the
same numbers. A follower keeps one portion of events at a time, however slow its client is. A run
with a final status has all its events stored, so a read after the end is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import orjson

from agentctl import errors
from agentctl.interface.requests import StreamEvent
from agentctl.records.events import parse_event
from agentctl.records.logs import RateLimitedLog
from agentctl.records.run_reader import RunChange, RunReader
from agentctl.runs.engine.changes import DatabaseChanges
from agentctl.runs.engine.engine import Engine
from agentctl.runs.log.event_rows import describe_approval, format_stored_run
from agentctl.runs.log.hub import FollowedRun
from agentctl.runs.log.stream import Stream, limit_size
from agentctl.runs.states import SHUTTING_DOWN, is_settled
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import approvals, run_reads, sessions
from agentctl.store.repositories.events import LAST_POSITION, EventRow, StoredPart
from agentctl.store.visibility import EVERYONE
from agentctl.work.event_loop import (
    RETRY_LIMIT_SECONDS,
    Turns,
    build_unread_outcome,
    retry_while_unavailable,
)

T = TypeVar("T")

_rate_limited = RateLimitedLog(logging.getLogger("agentctl.runs"))

PORTION_BYTES = 65_536
"""Maximum size of the events of one portion, unless a single event or stored batch is larger."""

ITEMS_EVENT = "ItemsChanged"
"""The name of an event with changes of items."""

CHANGE_WAIT_SECONDS = 0.5
"""Interval of the checks for a shutdown of this process while a follower waits for a change."""


def follow_run(
    engine: Engine,
    database: Database,
    changes: DatabaseChanges,
    run_id: str,
    after: int,
    *,
    is_started: bool = False,
) -> AsyncGenerator[list[StreamEvent]]:
    """Yield the events of a run after number `after`, including future ones, up to its end.

    They come in portions: all that are available, limited in size, so that a reader can send a
    portion at once.

    A run without stored events has two: its content (number 0, omitted if empty) and its end
    (number 1). While the database is unavailable the follower waits for it; if that takes too
    long, the events end without a last event. So do the events of a run of another process when
    this process shuts down (`engine.closing`).

    For example, in a route (close the generator at the end):

        async with contextlib.aclosing(follow_run(engine, database, changes, run_id, -1)) as events:
            async for portion in events:
                await send(portion)

    Args:
        after: number of the last event that the reader has; -1 if it has none.
        is_started: True if the request of the reader has started or continued the run.

    Raises:
        NotFound: there is no such run, and no event was yielded yet. If the run is deleted later,
            the events end without a last event.
        Unavailable: the database was unavailable for too long before the first event;
            `OutcomeUnknown` with `is_started`.
    """
    follower = _Follower(engine, database, changes, run_id, after)
    return follower.yield_portions(is_started)


async def flatten(portions: AsyncGenerator[list[StreamEvent]]) -> AsyncGenerator[StreamEvent]:
    """Yield the events of portions one by one; close the portions at the end."""
    async with contextlib.aclosing(portions):
        async for portion in portions:
            for event in portion:
                yield event


async def wait_until_final(
    engine: Engine, database: Database, changes: DatabaseChanges, run_id: str
) -> None:
    """Return once the row of a run has a final status, or the run is paused.

    Raises:
        NotFound: there is no such run, or it was deleted.
        Unavailable: another process executes the run and this one shuts down, or the database
            does not answer.
    """
    live_run = engine.find_run(run_id)
    if live_run is not None:
        await asyncio.shield(live_run.ended)

    while True:
        state = await database.read(run_reads.get_state(run_id))
        if state is None:
            raise errors.NotFound("Run not found")
        if is_settled(state.status):
            return

        with contextlib.closing(changes.hub.join(database, run_id, None)) as followed:
            while await followed.wait(LAST_POSITION, CHANGE_WAIT_SECONDS) is None:
                if engine.closing.is_set() and engine.find_run(run_id) is None:
                    raise errors.Unavailable(SHUTTING_DOWN)


async def wait_in_queue(
    engine: Engine, database: Database, changes: DatabaseChanges, run_id: str
) -> None:
    """Return once a run that waits for its turn has ended or paused, or this process shuts down.

    Raises:
        Unavailable: the database does not answer.
    """
    try:
        await retry_while_unavailable(
            partial(wait_until_final, engine, database, changes, run_id),
            on_unavailable=partial(_check_closing, engine),
        )
    except errors.Unavailable:
        if not engine.closing.is_set():
            raise


def _check_closing(engine: Engine) -> None:
    if engine.closing.is_set():
        raise errors.Unavailable(SHUTTING_DOWN)


class _Follower:
    """One reader of one run."""

    def __init__(
        self, engine: Engine, database: Database, changes: DatabaseChanges, run_id: str, after: int
    ) -> None:
        self._engine = engine
        self._database = database
        self._changes = changes
        self._run_id = run_id
        # Number of the last event that was yielded.
        self._position = after

        # Its place in the hub, once it has read all stored events of a run of another process.
        self._followed: FollowedRun | None = None
        # The last read of stored events, with its batches that were not yielded yet.
        self._read: tuple[StoredPart, deque[EventRow]] | None = None
        # True if the state of the run in this read is not older than the request for it.
        self._is_fresh = False
        # The events in memory, once this process was found to execute the run.
        self._stream: Stream | None = None

        self._has_yielded = False
        self._done = False

    async def yield_portions(self, is_started: bool) -> AsyncGenerator[list[StreamEvent]]:
        try:
            async with contextlib.aclosing(self._yield_all()) as portions:
                async for portion in portions:
                    yield portion
        except errors.Unavailable as error:
            if not is_started:
                raise
            raise build_unread_outcome(self._run_id, error) from error
        finally:
            self._leave()

    def _leave(self) -> None:
        self._read = None
        if self._followed is not None:
            self._followed.close()
            self._followed = None

    async def _yield_all(self) -> AsyncGenerator[list[StreamEvent]]:
        """Yield portions from the fastest source that has the next event, until the run ends."""
        turns = Turns()
        while not self._done:
            await turns.take()
            memory_events = self._read_memory()

            try:
                if memory_events is not None:
                    self._leave()
                    portion = await self._take_portion(memory_events)
                elif self._followed is not None:
                    portion = await self._read_hub(self._followed)
                else:
                    portion = await self._read_database()
            except errors.Unavailable:
                # Before the first event the reader can get an error. Later the head of its response
                # is sent already: the stream ends, and the reader continues after its last event.
                if not self._has_yielded:
                    raise
                _rate_limited.log("a stream was ended: its database is unavailable for too long")
                return

            if portion:
                self._has_yielded = True
                self._position = max(self._position, portion[-1].seq)
                yield portion

    def _read_memory(self) -> list[StreamEvent] | None:
        """Return the next events in the memory of this process; None if it does not have them."""
        if self._stream is None:
            live_run = self._engine.find_run(self._run_id)
            if live_run is None or live_run.parent is not None or not live_run.stream.recorded:
                return None
            # Kept: the engine forgets the run before slow followers have its last events.
            self._stream = live_run.stream

        return self._stream.events_from(self._position + 1)

    async def _take_portion(self, memory_events: list[StreamEvent]) -> list[StreamEvent]:
        """Return a portion of the events in memory; wait if there is none yet."""
        assert self._stream is not None
        if not memory_events and self._stream.closed:
            self._done = True
        elif not memory_events:
            await self._stream.wait_for_change()
            memory_events = self._stream.events_from(self._position + 1) or []
        return limit_size(memory_events, PORTION_BYTES)

    async def _read_hub(self, followed: FollowedRun) -> list[StreamEvent]:
        news = await followed.wait(self._position, CHANGE_WAIT_SECONDS)
        if news is None:
            # At shutdown the runs of this process still end first; runs of other processes do not.
            is_left = self._engine.find_run(self._run_id) is None
            self._done = self._engine.closing.is_set() and is_left
            return []
        if news.events is None or (news.settled and not news.events):
            # This follower is too slow for the hub, or the run has no stored events.
            self._leave()
            return []

        self._done = news.settled
        return news.events

    async def _read_database(self) -> list[StreamEvent]:
        """Return the next stored events; after the last one, join the hub or end.

        A read of several portions is kept until they are yielded.
        """
        if self._read is None:
            read = self._changes.stored.read
            position = self._position
            answer = await self._retry(partial(read, self._database, self._run_id, position))
            part, self._is_fresh = answer
            self._read = part, deque(row for row in part.batches if row.last_seq > position)

        part, batches = self._read
        if part.status is None:
            # It was deleted, or has never been there.
            self._done = True
            if not self._has_yielded:
                raise errors.NotFound("Run not found")
            return []

        # A shared read may be older than this follower: the run may continue since.
        is_settled_now = self._is_fresh and is_settled(part.status)
        if is_settled_now and part.newest < 0:
            self._done = True
            build = _build_events_from_row(self._run_id)
            row_events = await self._retry(partial(self._database.read, build, size="large"))
            return [event for event in row_events if event.seq > self._position]

        portion = list[StreamEvent]()
        size = 0
        while batches and size < PORTION_BYTES:
            batch = batches.popleft()
            batch_events = self._changes.stored.decode(batch)
            new_events = [event for event in batch_events if event.seq > self._position]
            size += sum(len(event.data) for event in new_events)
            portion += new_events
            # Of a damaged batch not all events can be decoded: do not read it again.
            self._position = batch.last_seq

        if not batches:
            self._read = None
            if self._position >= part.newest:
                self._done = is_settled_now
                if not self._done:
                    self._followed = self._changes.hub.join(
                        self._database, self._run_id, self._position
                    )
        return portion

    async def _retry(self, read: Callable[[], Awaitable[T]]) -> T:
        return await retry_while_unavailable(
            read,
            seconds=RETRY_LIMIT_SECONDS,
            pauses=(CHANGE_WAIT_SECONDS,),
            on_unavailable=partial(_check_closing, self._engine),
        )


@unit
def _build_events_from_row(run_id: str) -> Steps[list[StreamEvent]]:
    """Build the events of a run that has no stored events; none if the run is deleted."""
    run = yield from run_reads.get(run_id, EVERYONE)
    if run is None:
        return []

    # The session has the name of the component: it may not be configured here.
    session = yield from sessions.get(run.session_id, EVERYONE)
    component_name = None
    if session is not None and session.component_id == run.component_id:
        component_name = session.component_name

    pending_approvals: list[dict[str, Any]] = []
    if run.status == "PAUSED":
        # A root run waits for the approvals of its members as well.
        if run.parent_run_id is None:
            rows = yield from approvals.list_of_root(run_id)
        else:
            rows = yield from approvals.list_of_run(run_id)
        pending_approvals = [describe_approval(row) for row in rows if row.status == "pending"]

    events = format_stored_run(run, component_name or run.component_id, pending_approvals)
    return [StreamEvent(*event) for event in events]


async def stream_items(
    portions: AsyncGenerator[list[StreamEvent]], after: int | None
) -> AsyncGenerator[list[StreamEvent]]:
    """Yield an event with the changes that each event of a run causes.

    Args:
        portions: the events of the run from the first one on, which this generator closes.
        after: the number of the last event that the client has; None if it has none.
    """
    reader = RunReader()
    async with contextlib.aclosing(portions):
        async for portion in portions:
            change_events: list[StreamEvent] = []
            for event in portion:
                # Also the events that the client has: the items are built from all of them.
                changes = reader.apply(parse_event(event.name, event.data, event.seq))
                if changes and (after is None or event.seq > after):
                    data = {"changes": [_build_change(reader, change) for change in changes]}
                    change_events.append(StreamEvent(event.seq, ITEMS_EVENT, orjson.dumps(data)))

            if change_events:
                yield change_events


def _build_change(reader: RunReader, change: RunChange) -> dict[str, Any]:
    """Return the JSON of a change: of the record of a run, of the text of an item, or an item."""
    run = reader.runs[change.run_id]
    if change.position is None:
        return {"run_id": change.run_id, "run": run.record}

    place = {"run_id": change.run_id, "position": change.position}
    if change.added is not None:
        return {**place, "added": change.added}
    return {**place, "item": run.items[change.position]}
