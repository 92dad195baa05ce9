"""401s in the audit log: counted by cause, not recorded one by one.

A client without a credential can send any number of requests. They add at most one audit entry
for each minute, cause and process (docs/contract.md "Authorization").
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextvars import Context

from agentctl.auth.explain.checks import CHECKS
from agentctl.errors import InvalidToken, Unauthenticated, Unavailable
from agentctl.records.audit import AUTHENTICATE
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.records.times import now
from agentctl.service.audit_log import AuditLog
from agentctl.store.repositories.audit import NewAuditEntry

FLUSH_SECONDS = 60.0
"""Seconds from the first counted 401 until the counts are written."""

NO_CREDENTIAL = "no credential"
OTHER_CAUSE = "other"

_limited_log = RateLimitedLog(logging.getLogger("agentctl.server"), level=logging.ERROR)


class AuthenticationFailureCounter:
    """Counter of the 401s of this process, by cause.

    Args:
        audit: the audit log that receives the counts.
        seconds: the time between two writes.
    """

    def __init__(self, audit: AuditLog, *, seconds: float = FLUSH_SECONDS) -> None:
        self._audit = audit
        self._seconds = seconds
        self._counts: Counter[str] = Counter()
        self._flushing: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def flush_on_exit(self) -> AsyncIterator[AuthenticationFailureCounter]:
        """Write the remaining counts at the end of the block."""
        try:
            yield self
        finally:
            if self._flushing is not None:
                self._flushing.cancel()
                await asyncio.wait([self._flushing])
            await self.flush()

    def count(self, failure: Unauthenticated) -> None:
        """Count one failure. The causes are names of checks, so their number is fixed."""
        self._counts[_cause_of(failure)] += 1
        if self._flushing is None:
            # In an empty context, so that log lines of the task do not carry this request's id.
            self._flushing = asyncio.create_task(self._flush_later(), context=Context())

    async def _flush_later(self) -> None:
        """Write the counts until none are left; retry after a failure."""
        while self._counts:
            await asyncio.sleep(self._seconds)
            await self.flush()
        self._flushing = None

    async def flush(self) -> None:
        """Write one audit entry for each cause. If the database is unavailable, keep the counts."""
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            await asyncio.shield(self._audit.commit(*map(_build_entry, counts, counts.values())))
        except Unavailable as error:
            self._counts.update(counts)
            _limited_log.log("rejected credentials are not in the audit log yet: %s", error.cause)


def _cause_of(failure: Unauthenticated) -> str:
    if not isinstance(failure, InvalidToken):
        return NO_CREDENTIAL
    return failure.check if failure.check in CHECKS else OTHER_CAUSE


def _build_entry(cause: str, count: int) -> NewAuditEntry:
    return NewAuditEntry(
        at=now(),
        principal=None,
        via="http",
        operation=AUTHENTICATE,
        resource=None,
        outcome="denied",
        status=Unauthenticated.status,
        reason=f"{cause}: {count}",
        request_id=None,
    )
