"""Hearing that a PostgreSQL database was written to, by whichever server.

Notifications wake at once; a trigger sends them for what somebody may wait for (see the
migrations). The snapshot that the database would give is looked at behind them: it moves with every
commit, so that what was not announced, or not heard, is found out by the next look.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from agentctl.config.settings import Database as Entry
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.store.postgres.connection import Connection, build_connect_arguments

__all__ = ["Listener"]

POLL_SECONDS = 0.5
"""Time between two looks, and the longest that one may take."""

RETRY_SECONDS = 0.5

CLOSE_SECONDS = 1.0

CHANNEL = "agentctl"

_SNAPSHOT = "SELECT pg_current_snapshot()::text"

_complaints = RateLimitedLog(logging.getLogger("agentctl.store"))


class Listener:
    """Counts what is heard of one database, on a connection of its own.

    Args:
        entry: which database, and how.

    Attributes:
        heard: moves with every change that is heard of.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._schema: str | None = None
        self._snapshot: str | None = None
        self._failed = False
        self.heard = 0

    def start(self) -> None:
        """Begin to listen, unless it does. Needs a running event loop."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _listen(self) -> None:
        """Listen until cancelled, on one connection after the other."""
        while True:
            try:
                await self._listen_once()
            except Exception as error:
                # Once, that may be a loop that was held up, as where modules are loaded.
                if self._failed:
                    name = type(error).__name__
                    _complaints.make("database %s is not heard of: %s", self._entry.id, name)
                self._failed = True
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen_once(self) -> None:
        """Listen until the connection is lost."""
        import asyncpg

        given = build_connect_arguments(self._entry) | {"command_timeout": POLL_SECONDS}
        connection = await asyncpg.connect(**given)
        try:
            self._lost.clear()
            connection.add_termination_listener(lambda _: self._lost.set())
            self._schema = await connection.fetchval("SELECT current_schema()")
            await connection.add_listener(CHANNEL, self._hear)
            while not self._lost.is_set():
                await self._look(connection)
                self._failed = False
                await self._pause()
        finally:
            connection.terminate()

    async def _look(self, connection: Connection) -> None:
        snapshot = await connection.fetchval(_SNAPSHOT)
        if snapshot != self._snapshot:
            self._snapshot = snapshot
            self.heard += 1

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._lost.wait()
        except TimeoutError:
            return

    def _hear(self, *notification: Any) -> None:
        """Of another schema's servers it is heard too; that is not for us."""
        if notification[-1] == self._schema:
            self.heard += 1
