"""Connections to PostgreSQL that are used in turn.

Ours and not asyncpg's: that one takes a connection back the moment it is lost, while it is in use,
so that whoever uses it gets another failure than the one that happened, and a commit in doubt looks
like a connection that was lost before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.store.postgres.connection import CONNECTION_LOST, InDoubt, PooledConnection, connect

__all__ = ["Pool"]

IDLE_SECONDS = 300.0
"""How long a connection is kept that nobody needs."""

CLOSE_SECONDS = 2.0


class Pool:
    """At most `entry.pool_size` connections, made when they are needed.

    Args:
        entry: which database.

    Attributes:
        waiting: how many wait for one.
        in_use: how many are used.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._places = asyncio.Semaphore(entry.pool_size)
        self._idle: list[PooledConnection] = []
        self._trusted_from = float("-inf")
        self.waiting = 0
        self.in_use = 0

    def discard_open_connections(self) -> None:
        """A connection was lost; the others may be as dead without knowing: none of them is used
        again."""
        self._trusted_from = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[PooledConnection]:
        """A connection in no transaction; it is kept when it is given back so.

        Raises:
            Unavailable: all were in use for `entry.wait_seconds`.
            What a connection that cannot be made raises.
        """
        connection = await self._taken()
        try:
            yield connection
        except BaseException as error:
            if isinstance(error, (*CONNECTION_LOST, asyncio.CancelledError, InDoubt)):
                connection.terminate()
            elif not connection.is_closed() and connection.is_in_transaction():
                await _roll_back(connection)
            raise
        finally:
            self._give_back(connection)

    async def close(self) -> None:
        """Close those that are not in use, and those that are when they are given back."""
        self.discard_open_connections()
        idle, self._idle = self._idle, []
        await asyncio.gather(*(_close(connection) for connection in idle))

    async def _taken(self) -> PooledConnection:
        has_place = False
        try:
            async with asyncio.timeout(self._entry.wait_seconds):
                self.waiting += 1
                try:
                    has_place = await self._places.acquire()
                finally:
                    self.waiting -= 1
                connection = self._kept() or await connect(self._entry)
        except BaseException as error:
            if has_place:
                self._places.release()
            elif isinstance(error, TimeoutError):
                raise self._busy() from None
            raise
        self.in_use += 1
        return connection

    def _kept(self) -> PooledConnection | None:
        """The one that was used last, which is the least likely to be lost."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed() and connection.born > self._trusted_from:
                return connection
            connection.terminate()
        return None

    def _give_back(self, connection: PooledConnection) -> None:
        now = asyncio.get_running_loop().time()
        self.in_use -= 1
        self._places.release()
        if (
            connection.is_closed()
            or connection.is_in_transaction()
            or connection.born <= self._trusted_from
        ):
            connection.terminate()
            return
        connection.used = now
        self._idle.append(connection)
        if now - self._idle[0].used > IDLE_SECONDS:
            self._idle.pop(0).terminate()

    def _busy(self) -> errors.Unavailable:
        entry = self._entry
        return errors.Unavailable(
            "The database is busy",
            cause=f"all {entry.pool_size} connections of database {entry.id!r} are in use",
            hint="try again; see pool_size of [[databases]]",
        )


async def _roll_back(connection: PooledConnection) -> None:
    try:
        await connection.execute("ROLLBACK")
    except BaseException as error:
        connection.terminate()
        if not isinstance(error, (*CONNECTION_LOST, asyncpg.PostgresError)):
            raise


async def _close(connection: PooledConnection) -> None:
    try:
        await connection.close(timeout=CLOSE_SECONDS)
    except Exception:
        connection.terminate()
