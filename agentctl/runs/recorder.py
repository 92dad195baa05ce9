"""Stores the events of a live run, in batches, while it goes on.

A batch is written after `BATCH_SECONDS`, when `stream.BATCH_BYTES` wait, or at any event that is
not content (design.md "Runs"). One write of a run is under way at a time, so a database that is
slow gets larger batches and not more of them. The last batch is stored with the run's end.
"""

from __future__ import annotations

import asyncio
import logging

from agentctl import errors
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.runs.stream import BATCH_BYTES, Stream
from agentctl.store.database import Database
from agentctl.store.repositories import events

__all__ = ["Recorder"]

BATCH_SECONDS = 0.1

RETRY_SECONDS = 1.0
"""Pause after a write that the database did not take."""

_log = logging.getLogger("agentctl.runs")
_complaints = RateLimitedLog(_log)


class Recorder:
    """Keeps what a stream publishes.

    Args:
        run_id, attempt: whose events; another attempt's are refused by the store.
        stream: where they come from.
        database: where the run's row is.
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
        stream.on_publish = self._heard

    async def end(self) -> None:
        """Write no more; what is not stored then is to be stored with the end."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait({self._writing})

    def _heard(self, name: str) -> None:
        content = name.endswith("Content")
        self._write_now = self._write_now or not content
        if self._ended or self._writing is not None:
            return
        if self._write_now or self._stream.unstored_bytes >= BATCH_BYTES:
            self._write()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_SECONDS, self._write)

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None and not self._ended:
            self._writing = asyncio.create_task(self._store())

    async def _store(self) -> None:
        """Write what waits; what comes meanwhile waits for its own time again."""
        self._write_now = False
        try:
            await self._store_waiting()
        except errors.Unavailable:
            _complaints.make("events of runs could not be stored yet")
            self._schedule_retry()
        except Exception:
            _log.exception("run %s: its events are not stored any more", self._run_id)
            self._ended = True
        finally:
            self._writing = None
        if self._timer is None and self._stream.unstored_bytes:
            self._heard("Content")

    async def _store_waiting(self) -> None:
        most = self._stream.next
        while not self._ended and (batch := self._stream.next_batch()) and batch.first < most:
            append = events.append_batch(
                self._run_id, self._attempt, batch.first, batch.last, batch.lines
            )
            if not await self._database.write(append):
                # The run is gone, or is another worker's: nothing more is ours to store.
                self._ended = True
                return
            self._stream.stored(batch.last)

    def _schedule_retry(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._write)
