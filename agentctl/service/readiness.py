"""Whether the databases answer, asked for all who want to know at the same time, and bounded."""

from __future__ import annotations

import asyncio
from contextvars import Context

from agentctl import errors
from agentctl.store.database import probe
from agentctl.store.databases import Databases

__all__ = ["Readiness"]

PROBE_SECONDS = 2.0
"""How long a database may take to answer."""


class Readiness:
    """Probes the databases of a service.

    One probe is under way at most, and all who ask meanwhile are told what it finds: a database
    that does not answer gets no more work from those who ask whether it does. A probe that takes
    too long goes on, and until it ends the answer is known.

    Args:
        databases: every one of them has to answer.
    """

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._probing: asyncio.Task[bool] | None = None
        self._late_at = 0.0

    async def check_databases(self) -> bool:
        """Whether all do, within `PROBE_SECONDS`."""
        loop = asyncio.get_running_loop()
        if self._probing is None or self._probing.done():
            # About nobody's request: several wait for it.
            self._probing = loop.create_task(self._probe(), context=Context())
            self._late_at = loop.time() + PROBE_SECONDS
        probing = self._probing
        await asyncio.wait([probing], timeout=max(self._late_at - loop.time(), 0))
        return probing.done() and not probing.cancelled() and probing.result()

    async def close(self) -> None:
        """Give up a probe that is under way."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])

    async def _probe(self) -> bool:
        found = await asyncio.gather(*map(self._answers, self._databases))
        return all(found)

    async def _answers(self, database_id: str) -> bool:
        try:
            await self._databases[database_id].read(probe())
        except errors.AgentctlError:
            return False
        return True
