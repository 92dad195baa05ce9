"""Removes what is kept for a time only: events of runs that ended, keys of requests, lock files,
and rows of the audit.
"""

from __future__ import annotations

from typing import Protocol

from agentctl.records.times import now
from agentctl.runs import locks
from agentctl.store import audit, events, idempotency, workers
from agentctl.store.database import Database, Work
from agentctl.store.databases import Databases

__all__ = ["EVENTS_KEPT", "tidy"]

EVENTS_KEPT = 24 * 60 * 60 * 1_000_000
"""How long the events of a run are kept after its end, in microseconds (design.md "Events")."""

DAY = 24 * 60 * 60 * 1_000_000
"""Microseconds."""

UNITS = 20
"""Units of work of one kind that one round does: what is more is done by later rounds."""


async def tidy(databases: Databases, *, audit_days: int | None = None) -> None:
    """One round over the open databases. The audit is kept for `audit_days`; None: for ever.

    Raises:
        Unavailable: a database does not answer.
    """
    for database in databases.opened().values():
        await _emptied(database, events, now() - EVENTS_KEPT)
        await _emptied(database, idempotency, now() - idempotency.KEPT)
    if audit_days is not None:
        await _emptied(databases.system, audit, now() - audit_days * DAY)
    rows = await databases.system.read(workers.listed())
    locks.remove_strays(databases.system.lock_folder, {row.worker_id for row in rows})


class _Kept(Protocol):
    """A repository of what is kept for a time."""

    def any_older(self, before: int, /) -> Work[bool]: ...

    def delete_older(self, before: int, /) -> Work[int]: ...


async def _emptied(database: Database, kept: _Kept, before: int) -> None:
    """Look first, which keeps no writer waiting, then delete unit by unit, so that other writers
    have their turn in between.
    """
    for _ in range(UNITS):
        if not await database.read(kept.any_older(before), large=True):
            return
        await database.write(kept.delete_older(before))
