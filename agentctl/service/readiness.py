"""Readiness of the databases: one shared probe with a time limit."""

from __future__ import annotations

import asyncio
from contextvars import Context

from agentctl import errors
from agentctl.store.database import probe
from agentctl.store.databases import Databases

PROBE_SECONDS = 2.0
"""Seconds in which every database has to respond."""


class Readiness:
    """The readiness of the databases of a service.

    At most one probe is in progress, and all callers share its result, so that a database that
    does not respond gets no additional load from readiness checks. A probe that exceeds the limit
    continues; until it ends, the databases are not ready.

    Args:
        databases: the databases, all of which have to respond.
    """

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._probing: asyncio.Task[bool] | None = None
        self._late_at = 0.0

    async def check_databases(self) -> bool:
        """Return True if all databases responded within `PROBE_SECONDS`."""
        loop = asyncio.get_running_loop()
        if self._probing is None or self._probing.done():
            # An empty context: several requests wait for the probe, so its log lines name none.
            self._probing = loop.create_task(self._probe(), context=Context())
            self._late_at = loop.time() + PROBE_SECONDS
        probing = self._probing
        await asyncio.wait([probing], timeout=max(self._late_at - loop.time(), 0))
        return probing.done() and not probing.cancelled() and probing.result()

    async def close(self) -> None:
        """Cancel a probe in progress."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])

    async def _probe(self) -> bool:
        return all(await asyncio.gather(*map(self._is_responding, self._databases)))

    async def _is_responding(self, database_id: str) -> bool:
        try:
            database = self._databases[database_id]
            await database.read(probe())
        except errors.AgentctlError:
            return False
        return not database.write_failed
