"""A PostgreSQL connection for writes from a thread, with a separate event loop.

The heartbeat of a worker reports on the event loop of the process. So it must not depend on that
event loop, nor on the pool, which requests may have exhausted.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TypeVar

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.store.database import Work
from agentctl.store.postgres.connection import (
    CONNECTION_LOST,
    InDoubt,
    PooledConnection,
    build_unknown_outcome,
    connect,
    run_write,
    to_public_error,
)

T = TypeVar("T")

CLOSE_SECONDS = 1.0


class ThreadConnection:
    """A connection for threads, opened when it is first used and after it was lost.

    Args:
        entry: the configuration of the database.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: PooledConnection | None = None
        self._closed = False

    def write(self, work: Work[T]) -> T:
        """Run a unit in one transaction. Return when it is durable.

        The thread must not run an event loop.

        Raises:
            Unavailable: the change was not made.
            OutcomeUnknown: the connection was lost during the commit.
        """
        with self._lock:
            if self._closed:
                cause = f"database {self._entry.id!r}"
                raise errors.Unavailable("The database is closed", cause=cause)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            return self._loop.run_until_complete(self._write(work))

    def close(self) -> None:
        """Close the connection. The thread must not run an event loop."""
        with self._lock:
            self._closed = True
            if self._loop is not None:
                self._loop.run_until_complete(self._disconnect())
                self._loop.close()
                self._loop = None

    async def _write(self, work: Work[T]) -> T:
        try:
            try:
                if self._connection is not None:
                    return await run_write(self._connection, work)
            except TimeoutError:
                raise
            except CONNECTION_LOST:
                # Lost while it was idle: try again on a new connection.
                self._abandon()
            self._connection = await connect(self._entry)
            return await run_write(self._connection, work)
        except InDoubt:
            self._abandon()
            raise build_unknown_outcome() from None
        except Exception as error:
            # After any error, a new connection is in no transaction.
            self._abandon()
            raise to_public_error(error, self._entry.id) from None

    def _abandon(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await connection.close(timeout=CLOSE_SECONDS)
        except Exception:
            connection.terminate()
