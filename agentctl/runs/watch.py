"""How a process hears of cancel requests that another process recorded.

The row is the truth. While this process works on runs it looks whether a database has changed,
and asks for requests then, and every second whatever was heard: who hears of changes may be deaf.
"""

from __future__ import annotations

import asyncio
import logging

from agentctl import errors
from agentctl.records.complaints import Complaints
from agentctl.runs.changes import Changes, Look
from agentctl.runs.engine import Engine
from agentctl.runs.states import cancelled
from agentctl.store import runs
from agentctl.store.database import Database
from agentctl.store.databases import Databases

__all__ = ["watch_requests"]

LOOK_SECONDS = 0.02

ASK_SECONDS = 1.0
"""The longest time between two questions for requests."""

RETRY_SECONDS = 1.0
"""How long a look is put off that the database did not answer."""

_complaints = Complaints(logging.getLogger("agentctl.runs"))


async def watch_requests(engine: Engine, databases: Databases, changes: Changes) -> None:
    """Stop the engine's runs whose cancel was requested elsewhere. Runs until cancelled."""
    looks: dict[str, Look] = {}
    asked_at: dict[str, float] = {}
    clock = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if not engine.live_runs():
            continue
        for database_id, database in databases.opened().items():
            try:
                is_due = clock() - asked_at.get(database_id, 0.0) >= ASK_SECONDS
                if _moved(looks, database, changes) or is_due:
                    asked_at[database_id] = clock()
                    await _hear(engine, database)
            except errors.AgentctlError:
                _complaints.make("cancel requests of database %s could not be read", database_id)
                looks.pop(database_id, None)
                await asyncio.sleep(RETRY_SECONDS)


def _moved(looks: dict[str, Look], database: Database, changes: Changes) -> bool:
    """Whether there may be requests that have not been heard of: at the first look, always."""
    if database.id in looks:
        return looks[database.id].moved()
    looks[database.id] = changes.look(database)
    return True


async def _hear(engine: Engine, database: Database) -> None:
    for state in await database.read(runs.cancel_requests(engine.worker_id)):
        live = engine.live(state.run_id)
        if live is not None:
            live.stop(cancelled(state.cancel_requested_by or "system", state.cancel_reason))
