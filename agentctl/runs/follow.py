"""Following a run from wherever one is, and from whatever event on: no gap, no repeat.

Where the run is worked on, its events come from memory; what has left memory, and what another
process publishes, comes from the database as it is committed there. Both have the same numbers.
A reader holds one portion of events at a time, however slow it is. A row that is final has all its
events stored, so what a look finds of a run that ends between two looks is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import NamedTuple, TypeVar

from agentctl import errors
from agentctl.operations import StreamEvent
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.runs import event_format
from agentctl.runs.changes import ChangeTracker, DatabaseChanges
from agentctl.runs.engine import Engine
from agentctl.runs.states import is_final
from agentctl.runs.stream import Stream
from agentctl.runs.tasks import RETRY_LIMIT_SECONDS
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.repositories import events, runs, sessions
from agentctl.store.repositories.events import EventRow
from agentctl.store.visibility import EVERYONE

__all__ = ["follow_run", "wait_until_final"]

T = TypeVar("T")

_complaints = RateLimitedLog(logging.getLogger("agentctl.runs"))

BATCHES_PER_READ = 4
"""Batches that one look at the database takes at most: what a slow reader may hold."""

PORTION_BYTES = 65_536
"""Bytes of events that are taken from memory at a time, unless a single one is larger."""

CHANGE_WAIT_SECONDS = 0.5
"""How long a wait for a change of the database lasts before the process is asked whether it is to
end."""


async def follow_run(
    engine: Engine, database: Database, changes: DatabaseChanges, run_id: str, after: int
) -> AsyncGenerator[StreamEvent]:
    """The events of a run behind number `after`, those to come included, up to its end.

    A run whose events are not kept, or not any more, has two: its content (number 0, absent where
    there is none) and its end (number 1). A run of another process is followed until this one
    begins to end (`engine.stopping`).

    Args:
        database: where the run is.
        after: number of the last event that the reader has; -1 for none.

    A database that is away is waited for; when that takes too long, the events end without an end.

    Raises:
        NotFound: there is no such run, and no event was given yet. One that is deleted later ends
            without an end.
        Unavailable: the database was away for too long before any event was given.
    """
    follower = _Follower(engine, database, changes, run_id, after)
    while portion := await follower.next_portion():
        for event in portion:
            yield event


async def wait_until_final(
    engine: Engine, database: Database, changes: DatabaseChanges, run_id: str
) -> None:
    """Return once the row of a run is final.

    Raises:
        NotFound: there is no such run, or no longer.
        Unavailable: another process works on it and this one is to end, or the database does not
            answer.
    """
    look = changes.look(database)
    live = engine.live(run_id)
    if live is not None:
        await asyncio.shield(live.ended)
    while True:
        state = await database.read(runs.get_state(run_id))
        if state is None:
            raise errors.NotFound("Run not found")
        if is_final(state.status):
            return
        if engine.stopping.is_set() and engine.live(run_id) is None:
            raise errors.Unavailable("The server is shutting down")
        await look.changed(CHANGE_WAIT_SECONDS)


class _StoredPortion(NamedTuple):
    """What a look at the database found.

    Attributes:
        batches: the first ones behind the reader's position.
        final: whether the run has ended; then they are followed by stored ones only.
        kept: whether any event of the run is stored, or may still be.
    """

    batches: list[EventRow]
    final: bool
    kept: bool


class _Follower:
    """One reader of one run."""

    def __init__(
        self, engine: Engine, database: Database, changes: DatabaseChanges, run_id: str, after: int
    ) -> None:
        self._engine = engine
        self._database = database
        self._changes = changes
        self._run_id = run_id
        self._position = after
        self._look: ChangeTracker | None = None
        self._stream: Stream | None = None
        self._given = False
        self._over = False

    async def next_portion(self) -> list[StreamEvent]:
        """The next events, waited for; none once the run has ended and all were given."""
        while not self._over:
            held = self._read_memory()
            try:
                found = await (self._stored() if held is None else self._published(held))
            except errors.Unavailable:
                if not self._given:
                    raise
                _complaints.make("who follows a run is left: its database is away for too long")
                return []
            if found:
                self._given = True
                self._position = found[-1].seq
                return found
        return []

    def _read_memory(self) -> list[StreamEvent] | None:
        """The next events in memory; None when they are not to be found there."""
        if self._stream is None:
            live = self._engine.live(self._run_id)
            if live is None or live.parent is not None or not live.stream.recorded:
                return None
            self._stream = live.stream
        return self._stream.since(self._position + 1)

    async def _published(self, held: list[StreamEvent]) -> list[StreamEvent]:
        assert self._stream is not None
        if not held and self._stream.closed:
            self._over = True
        elif not held:
            await self._stream.changed()
        return _limit_portion(held)

    async def _stored(self) -> list[StreamEvent]:
        # Taken before the read, so that nothing is committed unheard between the two.
        look = self._look = self._look or self._changes.look(self._database)
        found = await self._read(_load_portion(self._run_id, self._position))
        if found is None:
            self._over = True
            if not self._given:
                raise errors.NotFound("Run not found")
            return []
        if found.final and not found.kept:
            self._over = True
            return await self._rebuild_events()
        if found.batches:
            self._over = found.final and len(found.batches) < BATCHES_PER_READ
            return _parse_batches(found.batches, self._position)
        if found.final or self._is_abandoned():
            self._over = True
        else:
            await look.changed(CHANGE_WAIT_SECONDS)
        return []

    def _is_abandoned(self) -> bool:
        """Whether this process is to end, and the run is none of those that it ends first."""
        return self._engine.stopping.is_set() and self._engine.live(self._run_id) is None

    async def _rebuild_events(self) -> list[StreamEvent]:
        """What stands for the events of a run that ended and has none."""
        told = await self._read(_load_replacement_events(self._run_id), large=True)
        return [event for event in told if event.seq > self._position]

    async def _read(self, work: Work[T], *, large: bool = False) -> T:
        """Read from a database that may be away for a while."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + RETRY_LIMIT_SECONDS
        while True:
            try:
                return await self._database.read(work, large=large)
            except errors.Unavailable:
                if self._engine.stopping.is_set() or clock() >= deadline:
                    raise
            await asyncio.sleep(CHANGE_WAIT_SECONDS)


def _limit_portion(held: list[StreamEvent]) -> list[StreamEvent]:
    """The first events, as far as a slow reader may hold them."""
    size = 0
    for count, event in enumerate(held):
        size += len(event.data)
        if count and size > PORTION_BYTES:
            return held[:count]
    return held


@unit
def _load_portion(run_id: str, position: int) -> Steps[_StoredPortion | None]:
    state = yield from runs.get_state(run_id)
    if state is None:
        return None
    final = is_final(state.status)
    batches = yield from events.list_after(run_id, position, BATCHES_PER_READ)
    kept = bool(batches) or not final or (yield from events.get_last_seq(run_id)) >= 0
    return _StoredPortion(batches, final, kept)


def _parse_batches(batches: list[EventRow], position: int) -> list[StreamEvent]:
    """The events in some batches that are behind a position. See `stream.lines_of`."""
    found = list[StreamEvent]()
    for batch in batches:
        for seq, line in enumerate(batch.events.split("\n")[:-1], batch.first_seq):
            if seq > position:
                name, _, data = line.partition(" ")
                found.append(StreamEvent(seq, name, data.encode()))
    return found


@unit
def _load_replacement_events(run_id: str) -> Steps[list[StreamEvent]]:
    """The content and the end of a run, from its row."""
    run = yield from runs.get(run_id, EVERYONE)
    if run is None:
        return []
    session = yield from sessions.get(run.session_id, EVERYONE)
    named = session is not None and session.component_id == run.component_id
    name = session.component_name if session is not None and named else None
    return [
        StreamEvent(*event)
        for event in event_format.format_stored_run(run, name or run.component_id)
    ]
