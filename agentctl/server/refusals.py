"""401s in the audit: counted by cause, not recorded one by one (contract.md 6).

Whoever has no credential can ask as often as they like; what they make the audit grow by is a row
a minute, cause and process, at most.
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

__all__ = ["FLUSH_SECONDS", "AuthenticationFailureCounter"]

FLUSH_SECONDS = 60.0
"""How long counts are kept in memory, from the first one on."""

NO_CREDENTIAL = "no credential"
OTHER_CAUSE = "other"

_complaints = RateLimitedLog(logging.getLogger("agentctl.server"), level=logging.ERROR)


class AuthenticationFailureCounter:
    """Counts the 401s of this process.

    Args:
        audit: where the counts go.
        seconds: after which time.
    """

    def __init__(self, audit: AuditLog, *, seconds: float = FLUSH_SECONDS) -> None:
        self._audit = audit
        self._seconds = seconds
        self._counts: Counter[str] = Counter()
        self._flushing: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def flush_on_exit(self) -> AsyncIterator[AuthenticationFailureCounter]:
        """At the end of the block, what was counted until then is recorded."""
        try:
            yield self
        finally:
            if self._flushing is not None:
                self._flushing.cancel()
                await asyncio.wait([self._flushing])
            await self.flush()

    def count(self, failure: Unauthenticated) -> None:
        """Count one. Causes are names of checks, of which there is a fixed number."""
        self._counts[_cause_of(failure)] += 1
        if self._flushing is None:
            # About all that is counted, and not about the request that happened to be the first.
            self._flushing = asyncio.create_task(self._flush_later(), context=Context())

    async def _flush_later(self) -> None:
        """Until nothing is left; what cannot be written is tried again."""
        while self._counts:
            await asyncio.sleep(self._seconds)
            await self.flush()
        self._flushing = None

    async def flush(self) -> None:
        """Record what was counted: a row for each cause. What cannot be written is kept."""
        counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            await asyncio.shield(self._audit.commit(*map(_build_entry, counts, counts.values())))
        except Unavailable as error:
            self._counts.update(counts)
            _complaints.make("refused credentials are not in the audit: %s", error.cause)


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
