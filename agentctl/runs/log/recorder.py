"""The recorder: stores the events of the live runs of this process in batches.

The events of a run are stored within `BATCH_SECONDS`, when `BATCH_BYTES` are waiting, or after any
event that is not content. Each run has one write at a time, and so has each database: the batches
of all runs that arrive meanwhile share the next statement. So a slow database receives larger
statements instead of more of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from weakref import WeakKeyDictionary

from agentctl import errors
from agentctl.records.events import CONTENT_NAMES
from agentctl.records.logs import RateLimitedLog
from agentctl.runs.log.stream import BATCH_BYTES, Stream
from agentctl.store.database import Database
from agentctl.store.repositories import events
from agentctl.store.versions import read_current_version

BATCH_SECONDS = 0.1
"""Interval of the writes. All runs of a process write at the same ticks of its clock, so that their
batches share one statement."""

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
        self._waiting: list[tuple[events.Batch, asyncio.Future[bool]]] = []
        self._task: asyncio.Task[None] | None = None
        self._next_look = 0.0

    async def append(self, database: Database, batch: events.Batch) -> bool:
        """Store a batch; return False if its run has ended, was deleted, or has another attempt."""
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((batch, stored))
        if self._task is None:
            self._task = asyncio.create_task(self._write(database))
        return await stored

    async def _write(self, database: Database) -> None:
        # The timers of a tick are due in one turn of the event loop.
        while self._waiting:
            group = self._waiting[: events.MAXIMUM_BATCHES]
            del self._waiting[: events.MAXIMUM_BATCHES]
            try:
                stored = await database.write(events.append_batches([batch for batch, _ in group]))
            except Exception as error:
                for _, waiter in group:
                    if not waiter.done():
                        waiter.set_exception(error)
            else:
                for run_id in stored:
                    database.announce(run_id)
                for batch, waiter in group:
                    if not waiter.done():
                        waiter.set_result(batch.run_id in stored)
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


class Recorder:
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
        if self._writing is None and not self._ended:
            self._writing = asyncio.create_task(self._store())

    async def _store(self) -> None:
        # Before the write: an event that arrives during it sets this again.
        self._write_now = False
        # Events that arrive during these writes wait for the next tick, to share its transaction.
        first_new = self._stream.next
        try:
            while (batch := self._stream.next_batch()) and batch.first_seq < first_new:
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
