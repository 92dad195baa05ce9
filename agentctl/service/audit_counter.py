"""Audit entries that a caller can cause at will: counted, not written one by one.

A client without a credential, or with one that allows nothing, can send any number of requests.
They add at most one audit entry for each minute and key in each process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from contextvars import Context

from agentctl.errors import Unavailable
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.store.repositories.audit import NewAuditEntry

FLUSH_SECONDS = 60.0
"""Seconds from the first request of a key until its count is written."""

MAXIMUM_KEYS = 10_000
"""Keys that are counted at the same time. The entries of further keys are written one by one."""


class EntryCounter:
    """The entries of the last minute by their keys, with their counts.

    Args:
        commit: writes entries and returns when they are on disk; raises Unavailable.
        seconds: the time between two writes.
    """

    def __init__(
        self,
        commit: Callable[..., Awaitable[None]],
        *,
        seconds: float = FLUSH_SECONDS,
    ) -> None:
        self._commit = commit
        self._seconds = seconds
        self._pending: dict[Hashable, NewAuditEntry | None] = {}
        self._flushing: asyncio.Task[None] | None = None
        self._log = RateLimitedLog(logging.getLogger("agentctl.service"), level=logging.ERROR)

    def is_first(self, key: Hashable) -> bool:
        """Return True if a key had no entry in the last minute.

        The caller then writes the entry, and counts the next ones with `count`.
        """
        if key in self._pending:
            return False
        if len(self._pending) < MAXIMUM_KEYS:
            self._pending[key] = None
            self._start()
        return True

    def count(self, key: Hashable, entry: NewAuditEntry) -> None:
        """Add an entry to the count of its key."""
        if key not in self._pending and len(self._pending) >= MAXIMUM_KEYS:
            self._log.log(
                "audit entries are lost: too many callers while the database is unavailable"
            )
            return
        counted = self._pending.get(key)
        self._pending[key] = entry if counted is None else _merge(counted, entry)
        self._start()

    async def close(self) -> None:
        """Write the remaining counts."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.wait([self._flushing])
        await self.flush()

    async def flush(self) -> None:
        """Write one entry for each counted key. If the database is unavailable, keep the counts.

        A counted key is also counted in the next minute, so that it has one entry a minute.
        """
        counted = {key: entry for key, entry in self._pending.items() if entry is not None}
        self._pending = dict.fromkeys(counted)
        if not counted:
            return
        try:
            await asyncio.shield(self._commit(*counted.values()))
        except Unavailable as error:
            for key, entry in counted.items():
                later = self._pending.get(key)
                self._pending[key] = entry if later is None else _merge(entry, later)
            self._log.log("counted requests are not in the audit log yet: %s", error.cause)

    def _start(self) -> None:
        if self._flushing is None:
            # In an empty context, so that log lines of the task do not carry this request's id.
            self._flushing = asyncio.create_task(self._flush_later(), context=Context())

    async def _flush_later(self) -> None:
        while self._pending:
            await asyncio.sleep(self._seconds)
            await self.flush()
        self._flushing = None


def _merge(earlier: NewAuditEntry, later: NewAuditEntry) -> NewAuditEntry:
    return later._replace(
        resource=later.resource if later.resource == earlier.resource else None,
        reason=later.reason if later.reason == earlier.reason else None,
        request_id=None,
        count=earlier.count + later.count,
    )
