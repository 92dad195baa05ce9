"""The connection pool for PostgreSQL.

It replaces the pool of asyncpg, which takes a lost connection back while it is in use: its user
then gets another error than the one that happened, and a commit in doubt looks like a connection
that was lost before (decision 33).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.store.postgres.connection import (
    InDoubt,
    PooledConnection,
    connect,
    count_answer_seconds,
)
from agentctl.store.postgres.failures import CONNECTION_LOST

IDLE_SECONDS = 60.0
"""Seconds after which an idle connection is closed."""

CLOSE_SECONDS = 2.0
"""Maximum time for the end of a connection; then it is terminated."""

LATE_SHARE = 0.5
"""Share of `wait_seconds`: a pool whose tasks wait longer for a connection is late."""


class Pool:
    """A pool of at most `entry.pool_size` connections, opened when they are needed."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        # The number of slots that no task has. A task needs one for a connection.
        self._free = entry.pool_size
        # The tasks that wait for a slot: True if it has one, False if it has waited too long.
        self._waiters = deque[asyncio.Future[bool]]()
        self._large_slots = asyncio.Semaphore(max(entry.pool_size // 2, 1))

        # In the order in which they were returned.
        self._idle: list[PooledConnection] = []
        self._busy = set[PooledConnection]()
        self._watching: asyncio.TimerHandle | None = None
        # Connections that were opened before this time may be lost.
        self._trusted_from = float("-inf")

        self.waiting = 0
        """Number of tasks that wait for a connection."""

        self.in_use = 0
        """Number of connections in use."""

        self._last_wait = 0.0

    @property
    def is_late(self) -> bool:
        """True if new work would take the connections that started work needs to end.

        Tasks wait, and the last of them to get a connection, or to give up, has waited for longer
        than `LATE_SHARE`.
        """
        return self.waiting > 0 and self._last_wait > LATE_SHARE * self._entry.wait_seconds

    def discard_open_connections(self) -> None:
        """Do not use the open connections again.

        Call it after one connection was lost: the other connections may be lost as well.
        """
        self._trusted_from = asyncio.get_running_loop().time()

    def borrow(self, *, custom_plans: bool = False) -> _Loan:
        """Borrow a connection that is in no transaction, in an `async with`.

        It returns to the pool if it is in no transaction at the end.

        Args:
            custom_plans: plan statements for their values, unless the connection is shared. A
                connection whose last user wanted the same is preferred.

        Raises:
            Unavailable: all connections were in use for `entry.wait_seconds`.
            TimeoutError: the response to a statement was late.
        """
        return _Loan(self, custom_plans)

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
            raise self._build_busy_error() from None
        try:
            yield
        finally:
            self._large_slots.release()

    async def close(self) -> None:
        """Close the idle connections now, and the connections in use when they are returned."""
        self.discard_open_connections()
        idle_connections = self._idle
        self._idle = []
        await asyncio.gather(*map(_close, idle_connections))

    async def acquire(self, custom_plans: bool) -> PooledConnection:
        """Take a connection for `borrow`."""
        deadline = asyncio.get_running_loop().time() + self._entry.wait_seconds

        if self._free and not self._waiters:
            self._free -= 1
            # Otherwise a wait of long ago would make the pool late as soon as one task waits.
            self._last_wait = 0.0
        else:
            await self._wait_for_slot(deadline)

        connection = self._pop_idle(custom_plans)
        if connection is None:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self._connect()
            except BaseException:
                self._pass_slot()
                raise

        self.in_use += 1
        self._busy.add(connection)
        connection.begin_statement()
        if self._watching is None:
            self._watch()
        return connection

    async def give_back(self, connection: PooledConnection, error: BaseException | None) -> None:
        """End a `borrow`, which has raised an error or not."""
        try:
            if isinstance(error, (*CONNECTION_LOST, asyncio.CancelledError, InDoubt)):
                connection.terminate()
            elif error and not connection.is_closed() and connection.is_in_transaction():
                await _roll_back(connection)
        finally:
            self._release(connection)

    async def _wait_for_slot(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.append(waiter)
        timer = loop.call_at(deadline, _resolve, waiter, False)
        self.waiting += 1

        try:
            has_slot = await waiter
            self._last_wait = loop.time() - began
            if not has_slot:
                raise self._build_busy_error()
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self._pass_slot()
            raise
        finally:
            self.waiting -= 1
            timer.cancel()

    def _pass_slot(self) -> None:
        """Give a slot to the task that waits longest, or free it."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return
        self._free += 1

    def _watch(self) -> None:
        """Terminate the connections whose response is late, and look again when one may be."""
        loop = asyncio.get_running_loop()
        self._watching = None
        present = loop.time()

        for connection in self._busy:
            if connection.deadline <= present:
                connection.timed_out = True
                connection.terminate()
        deadlines = [connection.deadline for connection in self._busy if not connection.timed_out]

        if deadlines:
            self._watching = loop.call_at(min(deadlines), self._watch)

    async def _connect(self) -> PooledConnection:
        connection = await connect(self._entry, command_timeout=None)
        connection.answer_seconds = count_answer_seconds(self._entry)
        return connection

    def _pop_idle(self, custom_plans: bool) -> PooledConnection | None:
        while self._idle:
            connection = self._idle.pop(self._choose_idle(custom_plans))
            if not connection.is_closed() and connection.born > self._trusted_from:
                return connection
            connection.terminate()
        return None

    def _choose_idle(self, custom_plans: bool) -> int:
        """Return the index of the last used connection, with the same plans if possible."""
        newest_first = range(len(self._idle) - 1, -1, -1)
        for index in newest_first:
            if self._idle[index].has_custom_plans is custom_plans:
                return index
        return -1

    def _release(self, connection: PooledConnection) -> None:
        now = asyncio.get_running_loop().time()
        self.in_use -= 1
        self._busy.discard(connection)
        self._pass_slot()

        is_usable = not connection.is_closed() and not connection.is_in_transaction()
        is_trusted = connection.born > self._trusted_from
        # After a failover the URL may name the new primary already.
        if not is_usable or not is_trusted or connection.is_to_standby:
            connection.terminate()
            return

        connection.used = now
        self._idle.append(connection)

        if now - self._idle[0].used > IDLE_SECONDS:
            self._idle.pop(0).terminate()

    def _build_busy_error(self) -> errors.Unavailable:
        entry = self._entry
        return errors.Unavailable(
            "The database is busy",
            cause=f"all {entry.pool_size} connections of database {entry.id!r} are in use",
            hint="try again; see pool_size of [[databases]]",
        )


class _Loan:
    """A borrowed connection. A generator as a context manager would cost more than a statement."""

    __slots__ = ("_connection", "_custom_plans", "_pool")

    def __init__(self, pool: Pool, custom_plans: bool) -> None:
        self._pool = pool
        self._custom_plans = custom_plans

    async def __aenter__(self) -> PooledConnection:
        connection = await self._pool.acquire(self._custom_plans)
        self._connection = connection
        if connection.has_custom_plans is not self._custom_plans and not connection.is_shared:
            try:
                await connection.set_custom_plans(self._custom_plans)
            except BaseException as error:
                await self.__aexit__(type(error), error, None)
                raise
        return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        connection = self._connection
        await self._pool.give_back(connection, error)
        if connection.timed_out and isinstance(error, CONNECTION_LOST):
            raise TimeoutError from None


def _resolve(waiter: asyncio.Future[bool], has_slot: bool) -> None:
    if not waiter.done():
        waiter.set_result(has_slot)


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
