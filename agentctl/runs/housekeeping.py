"""Removes what is kept for a time only: events of runs that ended, keys of requests, lock files."""

from __future__ import annotations

from collections.abc import Callable

from agentctl.records.times import now
from agentctl.runs import locks
from agentctl.store import events, idempotency, workers
from agentctl.store.database import Database, Work
from agentctl.store.databases import Databases

__all__ = ["EVENTS_KEPT", "tidy"]

EVENTS_KEPT = 24 * 60 * 60 * 1_000_000
"""How long the events of a run are kept after its end, in microseconds (design.md "Events")."""

UNITS = 20
"""Units of work of one kind that one round does: what is more is done by later rounds."""


async def tidy(databases: Databases) -> None:
    """One round over the open databases.

    Raises:
        Unavailable: a database does not answer.
    """
    for database in databases.opened().values():
        await _emptied(database, events.delete_older, now() - EVENTS_KEPT)
        await _emptied(database, idempotency.delete_older, now() - idempotency.KEPT)
    rows = await databases.system.read(workers.listed())
    locks.remove_strays(databases.system.lock_folder, {row.worker_id for row in rows})


async def _emptied(
    database: Database, delete_older: Callable[[int], Work[int]], before: int
) -> None:
    """Delete unit by unit, so that other writers have their turn in between."""
    for _ in range(UNITS):
        if not await database.write(delete_older(before)):
            return
