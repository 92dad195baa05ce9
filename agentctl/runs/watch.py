"""How a process hears of cancel requests that another process recorded.

The row is the truth. While this process works on runs it looks whether another connection has
committed (`PRAGMA data_version`, 0.1 ms of CPU a look), and only then asks for requests.
"""

from __future__ import annotations

import asyncio
import logging

from agentctl import errors
from agentctl.runs.engine import Engine
from agentctl.runs.states import cancelled
from agentctl.store import runs
from agentctl.store.database import Database
from agentctl.store.databases import Databases

__all__ = ["watch_requests"]

LOOK_SECONDS = 0.02

RETRY_SECONDS = 1.0
"""How long a look is put off that the database did not answer."""

_log = logging.getLogger("agentctl.runs")


async def watch_requests(engine: Engine, databases: Databases) -> None:
    """Stop the engine's runs whose cancel was requested elsewhere. Runs until cancelled."""
    seen: dict[str, int] = {}
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if not engine.live_runs():
            continue
        for database_id, database in databases.opened().items():
            try:
                await _look(engine, database, seen)
            except errors.AgentctlError:
                _log.warning("cancel requests of database %s could not be read", database_id)
                await asyncio.sleep(RETRY_SECONDS)


async def _look(engine: Engine, database: Database, seen: dict[str, int]) -> None:
    """Hear of what was requested since `seen`, which is moved on once it has been heard."""
    version = database.changes()
    if version == seen.get(database.id):
        return
    for state in await database.read(runs.cancel_requests(engine.worker_id)):
        live = engine.live(state.run_id)
        if live is not None:
            live.stop(cancelled(state.cancel_requested_by or "system", state.cancel_reason))
    seen[database.id] = version
