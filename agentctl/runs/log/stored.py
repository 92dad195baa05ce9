"""The reads of stored events for late followers, shared by all of a process.

A run is read by one statement at a time, as many batches as fit into 64 KB. They are kept for a
moment: the followers that come to the same place next read nothing. A follower that waits for no
read is not delayed by slower ones.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from typing import NamedTuple

from agentctl.store.database import Database
from agentctl.store.repositories import events
from agentctl.store.repositories.events import StoredPart
from agentctl.work.event_loop import retrieve_exception

KEPT_SECONDS = 2.0
"""Time for which a read is kept."""

PART_KEPT_BYTES = 2**21
"""Maximum size of the kept reads of all runs, unless a single one is larger."""

OVERHEAD_BYTES = 1_024
"""The size of a read without events, for `PART_KEPT_BYTES`."""

_Key = tuple[str, str]
"""The ids of a database and of a run."""


class _Read(NamedTuple):
    """A read of a run: the events after number `start` up to number `end`."""

    key: _Key
    start: int
    end: int
    began: float
    size: int
    part: StoredPart

    def has_answer(self, position: int, requested: float) -> bool:
        """Return True if it has events after a position, or found none after a request."""
        is_new = self.began >= requested and self.end >= self.part.newest
        return self.start <= position and (position < self.end or is_new)


class StoredEvents:
    """The stored events of the runs that followers of this process have not read yet.

    Attributes:
        size: bytes of the kept reads.
    """

    def __init__(self) -> None:
        self._running: dict[_Key, asyncio.Task[_Read]] = {}
        self._kept: defaultdict[_Key, deque[_Read]] = defaultdict(deque)
        self._oldest: deque[_Read] = deque()
        self.size = 0

    async def read(self, database: Database, run_id: str, position: int) -> tuple[StoredPart, bool]:
        """Return a part of a run with all that is stored after a position, limited in size.

        It may also have batches before the position.

        Returns:
            The part, and True if its state was read after this call.

        Raises:
            Unavailable: the database does not answer.
        """
        key, requested = (database.id, run_id), asyncio.get_running_loop().time()
        while (found := self._find(key, position, requested)) is None:
            running = self._running.get(key)
            if running is None:
                running = asyncio.create_task(self._read(database, key, position))
                self._running[key] = running
                running.add_done_callback(retrieve_exception)
            done = await asyncio.shield(running)
            if done.has_answer(position, requested):
                # It may be too large to be kept together with others.
                found = done
                break
        return found.part, found.began >= requested

    def _find(self, key: _Key, position: int, requested: float) -> _Read | None:
        kept = self._kept.get(key, ())
        return next((read for read in kept if read.has_answer(position, requested)), None)

    async def _read(self, database: Database, key: _Key, position: int) -> _Read:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            part = await database.read(events.read_part(key[1], position))
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
        while self._oldest and self._oldest[0].began <= read.began:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        read = self._oldest.popleft()
        kept = self._kept[read.key]
        kept.popleft()
        if not kept:
            del self._kept[read.key]
        self.size -= read.size
