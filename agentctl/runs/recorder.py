"""The recorder: stores the events of a live run in batches while the run executes.

The recorder writes a batch within `BATCH_SECONDS`, when `stream.BATCH_BYTES` are waiting, or after
any event that is not content. It executes one write at a time, so a slow database receives larger
batches instead of more of them. The last batch is stored with the final status
(docs/decisions/0014).
"""

from __future__ import annotations

import asyncio
import logging

from agentctl import errors
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.runs.stream import BATCH_BYTES, Stream
from agentctl.store.database import Database
from agentctl.store.repositories import events

BATCH_SECONDS = 0.1
"""Interval of the writes. All runs of a process write at the same ticks of its clock, so that their
batches share one transaction."""

RETRY_SECONDS = 1.0
"""Pause after a write that failed because the database was unavailable."""

_log = logging.getLogger("agentctl.runs")
_rate_limited = RateLimitedLog(_log)


class Recorder:
    """Stores the events that a stream publishes.

    Args:
        attempt: of the run; the store refuses the events of another attempt.
        database: database with the row of the run.
    """

    def __init__(self, run_id: str, attempt: int, stream: Stream, database: Database) -> None:
        self._run_id = run_id
        self._attempt = attempt
        self._stream = stream
        self._database = database
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
        self._write_now = self._write_now or not name.endswith("Content")
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
        try:
            await self._store_waiting()
        except errors.Unavailable:
            _rate_limited.log("events of runs could not be stored yet")
            self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._write)
        except Exception:
            _log.exception("run %s: its events are not stored any more", self._run_id)
            self._ended = True
        finally:
            self._writing = None
        if self._timer is None and self._stream.unstored_bytes:
            self._schedule("Content")

    async def _store_waiting(self) -> None:
        # Events that arrive during these writes wait for the next tick, to share its transaction.
        first_new = self._stream.next
        while not self._ended and (batch := self._stream.next_batch()) and batch.first < first_new:
            append = events.append_batch(
                self._run_id, self._attempt, batch.first, batch.last, batch.lines
            )
            if not await self._database.write(append):
                # The run was deleted, or another worker owns it.
                self._ended = True
                return
            self._stream.mark_stored(batch.last)
