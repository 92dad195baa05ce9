"""Writing to PostgreSQL from a thread: one connection, with an event loop of its own.

The beat of a worker must not depend on the event loop that it tells of, nor on the pool that the
loop's requests may have taken.
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
    Connection,
    InDoubt,
    build_unknown_outcome,
    connect,
    run_transaction,
    to_public_error,
)

__all__ = ["ThreadConnection"]

T = TypeVar("T")

CLOSE_SECONDS = 1.0


class ThreadConnection:
    """A connection for threads; made when it is first needed, and again after it was lost.

    Args:
        entry: which database, and how.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._closed = False

    def write(self, work: Work[T]) -> T:
        """Run a unit in one transaction; returns when it is durable. Not for a thread with a
        running event loop.

        Raises:
            Unavailable: that could not be done, or (OutcomeUnknown) nobody knows whether it was.
        """
        with self._lock:
            if self._closed:
                cause = f"database {self._entry.id!r}"
                raise errors.Unavailable("The database is closed", cause=cause)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            return self._loop.run_until_complete(self._write(work))

    def close(self) -> None:
        """Close the connection. Not for a thread with a running event loop."""
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
                    return await run_transaction(self._connection, work)
            except TimeoutError:
                raise
            except CONNECTION_LOST:
                # Since it was used last, which nobody was there to notice.
                self._abandon()
            self._connection = await connect(self._entry)
            return await run_transaction(self._connection, work)
        except InDoubt:
            self._abandon()
            raise build_unknown_outcome() from None
        except Exception as error:
            # Whatever it was, a new connection is in no transaction.
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
