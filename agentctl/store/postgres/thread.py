"""A PostgreSQL connection for the heartbeat and for notifications, on a separate thread.

The heartbeat of a worker reports on the event loop of the process. So it must not depend on that
event loop, nor on the pool, which requests may have exhausted. The listener of the process shares
the connection, so that an idle process needs one connection and one more for requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.store.database import Work
from agentctl.store.postgres.connection import (
    InDoubt,
    PooledConnection,
    build_unknown_outcome,
    connect,
    run_write,
)
from agentctl.store.postgres.failures import CONNECTION_LOST, to_public_error

T = TypeVar("T")

CLOSE_SECONDS = 1.0
"""Maximum time for the end of the connection."""


class ThreadConnection:
    """A connection for other threads, opened when it is first used and after it was lost.

    If the `listen_url` cannot be reached, writes use the `url`: a heartbeat does not depend on the
    way of the notifications.

    Args:
        entry: the configuration of the database; `listen_url` replaces its `url`.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry.at_listen_url()
        self._pool_entry = entry
        self._submitting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._using = asyncio.Lock()
        self._connection: PooledConnection | None = None
        # Used instead while there is no connection to the `listen_url`.
        self._detour: PooledConnection | None = None
        self._closed = False

    def write(self, work: Work[T]) -> T:
        """Run a unit in one transaction. Return when it is durable.

        The thread must not run an event loop.

        Raises:
            Unavailable: the change was not made.
            OutcomeUnknown: the connection was lost during the commit.
        """
        return self._submit(self._write(work)).result()

    async def share(self) -> SharedConnection:
        """Return the connection for the event loop of the caller; open it if necessary."""
        connection = await asyncio.wrap_future(self._submit(self._open()))
        return SharedConnection(connection, self._submit, self._using)

    def close(self) -> None:
        """Close the connection. The thread must not run an event loop."""
        with self._submitting:
            if self._loop is not None and not self._closed:
                asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop)
            self._closed = True
        if self._thread is not None:
            self._thread.join()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread."""
        with self._submitting:
            if self._closed:
                work.close()
                cause = f"database {self._entry.id!r}"
                raise errors.DatabaseClosed("The database is closed", cause=cause)
            if self._loop is None:
                self._loop = self._start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _start(self) -> asyncio.AbstractEventLoop:
        started: Future[asyncio.AbstractEventLoop] = Future()

        async def serve() -> None:
            started.set_result(asyncio.get_running_loop())
            await self._ended.wait()

        name = f"agentctl-database-{self._entry.id}"
        self._thread = threading.Thread(target=asyncio.run, args=(serve(),), name=name, daemon=True)
        self._thread.start()
        return started.result()

    async def _open(self) -> PooledConnection:
        async with self._using:
            if self._connection is not None and not self._connection.is_closed():
                return self._connection

        # A heartbeat does not wait for this.
        connection = await self._connect_to_listen()
        try:
            async with self._using:
                self._abandon()
                self._connection = connection
        except BaseException:
            connection.terminate()
            raise

        return connection

    async def _write(self, work: Work[T]) -> T:
        async with self._using:
            try:
                try:
                    connection = self._connection or self._detour
                    if connection is not None:
                        return await run_write(connection, work)
                except TimeoutError:
                    raise
                except CONNECTION_LOST:
                    # Lost while it was idle: try again on a new connection.
                    self._abandon()

                return await run_write(await self._connect(), work)
            except InDoubt:
                self._abandon()
                raise build_unknown_outcome() from None
            except Exception as error:
                # After any error, a new connection is in no transaction.
                self._abandon()
                raise to_public_error(error, self._entry.id) from None

    async def _connect(self) -> PooledConnection:
        try:
            connection = await self._connect_to_listen()
        except Exception:
            if not self._pool_entry.listen_url:
                raise
            connection = await connect(self._pool_entry)
            self._detour = connection
        else:
            self._connection = connection
        return connection

    async def _connect_to_listen(self) -> PooledConnection:
        connection = await connect(self._entry)
        if self._pool_entry.listen_url and connection.is_to_standby:
            # After a failover, while the `url` leads to the new primary.
            connection.terminate()
            raise ConnectionError("the listen_url leads to a standby")
        return connection

    def _abandon(self) -> None:
        for connection in (self._connection, self._detour):
            if connection is not None:
                connection.terminate()
        self._connection = None
        self._detour = None

    async def _disconnect(self) -> None:
        async with self._using:
            connection = self._connection or self._detour
            if connection is not None:
                with contextlib.suppress(Exception):
                    await connection.close(timeout=CLOSE_SECONDS)
            self._abandon()
        self._ended.set()


class SharedConnection:
    """The connection of a `ThreadConnection`, for the event loop that uses it."""

    def __init__(
        self,
        connection: PooledConnection,
        submit: Callable[[Coroutine[Any, Any, Any]], Future[Any]],
        using: asyncio.Lock,
    ) -> None:
        self._connection = connection
        self._submit = submit
        self._using = using
        self._own_loop = asyncio.get_running_loop()

    async def use(self, work: Callable[[PooledConnection], Coroutine[Any, Any, T]]) -> T:
        """Run a function on the thread, while no other statement is running.

        Raises:
            Exception: the errors of asyncpg.
        """

        async def use() -> T:
            async with self._using:
                return await work(self._connection)

        return await asyncio.wrap_future(self._submit(use()))

    def on_own_loop(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Return a function that calls `callback` on the event loop of this object."""

        def call(*arguments: Any) -> None:
            # The event loop of the process may have ended.
            with contextlib.suppress(RuntimeError):
                self._own_loop.call_soon_threadsafe(callback, *arguments)

        return call

    def terminate(self) -> None:
        """Close the connection as soon as no statement is running."""

        async def terminate() -> None:
            async with self._using:
                self._connection.terminate()

        with contextlib.suppress(errors.Unavailable):
            self._submit(terminate())
