"""The connection pool for PostgreSQL.

It replaces the pool of asyncpg, which takes a lost connection back while it is in use: its user
then gets another error than the one that happened, and a commit in doubt looks like a connection
that was lost before (docs/decisions/0033).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.store.postgres.connection import CONNECTION_LOST, InDoubt, PooledConnection, connect

IDLE_SECONDS = 60.0
"""Seconds after which an idle connection is closed."""

CLOSE_SECONDS = 2.0


class Pool:
    """A pool of at most `entry.pool_size` connections, opened when they are needed.

    Args:
        entry: the configuration of the database.

    Attributes:
        waiting: number of tasks that wait for a connection.
        in_use: number of connections in use.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._slots = asyncio.Semaphore(entry.pool_size)
        self._large_slots = asyncio.Semaphore(max(entry.pool_size // 2, 1))
        self._idle: list[PooledConnection] = []
        self._trusted_from = float("-inf")
        self.waiting = 0
        self.in_use = 0

    def discard_open_connections(self) -> None:
        """Do not use the open connections again.

        Called after one was lost: the others may be lost as well.
        """
        self._trusted_from = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[PooledConnection]:
        """Borrow a connection that is in no transaction.

        It returns to the pool if it is in no transaction at the end.

        Raises:
            Unavailable: all connections were in use for `entry.wait_seconds`.
            Exception: the errors of `connection.connect`.
        """
        connection = await self._acquire()
        try:
            yield connection
        except BaseException as error:
            if isinstance(error, (*CONNECTION_LOST, asyncio.CancelledError, InDoubt)):
                connection.terminate()
            elif not connection.is_closed() and connection.is_in_transaction():
                await _roll_back(connection)
            raise
        finally:
            self._release(connection)

    @asynccontextmanager
    async def reserve_for_large_read(self) -> AsyncIterator[None]:
        """Wait until less than half of the connections are used for large reads.

        Raises:
            Unavailable: they were in use for `entry.wait_seconds`.
        """
        try:
            async with asyncio.timeout(self._entry.wait_seconds):
                await self._large_slots.acquire()
        except TimeoutError:
            raise self._build_busy() from None
        try:
            yield
        finally:
            self._large_slots.release()

    async def close(self) -> None:
        """Close the idle connections now, and the others when they are returned."""
        self.discard_open_connections()
        idle, self._idle = self._idle, []
        await asyncio.gather(*(_close(connection) for connection in idle))

    async def _acquire(self) -> PooledConnection:
        has_slot = False
        try:
            async with asyncio.timeout(self._entry.wait_seconds):
                self.waiting += 1
                try:
                    has_slot = await self._slots.acquire()
                finally:
                    self.waiting -= 1
                connection = self._pop_idle() or await connect(self._entry)
        except BaseException as error:
            if has_slot:
                self._slots.release()
            elif isinstance(error, TimeoutError):
                raise self._build_busy() from None
            raise
        self.in_use += 1
        return connection

    def _pop_idle(self) -> PooledConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed() and connection.born > self._trusted_from:
                return connection
            connection.terminate()
        return None

    def _release(self, connection: PooledConnection) -> None:
        now = asyncio.get_running_loop().time()
        self.in_use -= 1
        self._slots.release()
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

    def _build_busy(self) -> errors.Unavailable:
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
