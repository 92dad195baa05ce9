"""The PostgreSQL driver: a connection pool. Each unit runs on one connection.

A unit that PostgreSQL has undone is run again: after a deadlock or a serialization failure up to
three times, after a lost connection once (decision 23). If the response to a COMMIT is
lost, the driver asks for the outcome on another connection, by the transaction id, so that no
change is lost or made twice. An outcome that PostgreSQL cannot report after a crash is reported as
unknown (decision 27).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import asyncpg

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.records.jitter import jitter
from agentctl.store.database import FAILURE_SECONDS, Load, ReadSize, SecondStatement, Sql, Work
from agentctl.store.outbox import Outbox
from agentctl.store.postgres.connection import (
    LAST_CRASH,
    InDoubt,
    PooledConnection,
    build_unknown_outcome,
    run_unit,
    run_write,
)
from agentctl.store.postgres.failures import CONFLICTS, CONNECTION_LOST, to_public_error
from agentctl.store.postgres.listener import Listener
from agentctl.store.postgres.pool import Pool
from agentctl.store.postgres.schema import prepare_schema
from agentctl.store.postgres.thread import ThreadConnection
from agentctl.store.schema import StoredVersion
from agentctl.store.threads import call_in_thread
from agentctl.store.totals import ListTotals
from agentctl.work.event_loop import retrieve_exception

T = TypeVar("T")

CONFLICT_RETRIES = 3
"""Retries of a unit after deadlocks and serialization failures."""

LOST_RETRIES = 1
"""Retries of a unit after lost connections."""

_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

# A generic plan assumes an average user: it sorts the 30,000 sessions of a large user to show the
# last 20 (decision 36). Planning again costs less than a list.
_LARGE_SNAPSHOT = f"{_SNAPSHOT}; SET LOCAL plan_cache_mode = force_custom_plan"

_CLOCK = Sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")

_STATUS = f"SELECT pg_xact_status($1::text::xid8), {LAST_CRASH}"

_OUTCOME_RETRY_SECONDS = 0.1
"""Pause between two questions for the outcome of a transaction."""

_NOTHING_WRITABLE = (
    asyncpg.DiskFullError,
    asyncpg.ReadOnlySQLTransactionError,
    # The statement of a write was late: it has waited for a lock, or for the disk.
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
)
"""The errors of a write after which the process is not ready (`Database.write_failed`)."""

_NO_ANSWER = (TimeoutError, ConnectionRefusedError, FileNotFoundError)
"""The errors of a server that did not answer at all."""


class PostgresDatabase:
    """A database on a PostgreSQL server (`database.Database`).

    It connects and checks its schema when it is first used, or in `check`.
    """

    def __init__(self, entry: Entry, *, create: bool) -> None:
        self.id = entry.id
        self.totals = ListTotals()
        self.outbox = Outbox()
        self.version = StoredVersion(0, 0)

        self._entry = entry
        self._create = create
        self._closed = False
        self._refused_at: float | None = None
        self._opening = asyncio.Lock()
        self._schema_checked = False

        self._pool = Pool(entry)
        self._thread_connection = ThreadConnection(entry)
        self._listener = Listener(entry, self._thread_connection)
        self._writes: set[asyncio.Task[Any]] = set()

        self._changes = 0

    @property
    def lock_folder(self) -> Path | None:
        """None: processes on several machines share no files. Pids and heartbeats are used."""
        return None

    async def check(self) -> None:
        """Connect, and check the schema."""
        try:
            await self._open_pool()
        except Exception as error:
            raise to_public_error(error, self.id) from None

    @property
    def write_failed(self) -> bool:
        refused_at = self._refused_at
        return refused_at is not None and time.monotonic() - refused_at < FAILURE_SECONDS

    @property
    def is_late(self) -> bool:
        return self._pool.is_late

    async def read(self, work: Work[T], *, size: ReadSize = "small") -> T:
        """Run a unit that only reads, on one snapshot.

        The statements of a read of `unknown` or `large` size are planned for their values: those
        are lists. At most half of the connections execute `large` reads.
        """
        if size == "large":
            async with self._pool.reserve_for_large_read():
                return await self._run_with_retries(self._read_with_custom_plans, work)
        if size == "unknown":
            return await self._run_with_retries(self._read_with_custom_plans, work)
        return await self._run_with_retries(self._read, work)

    async def write(self, work: Work[T]) -> T:
        task = asyncio.create_task(self._run_with_retries(self._write, work))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        task.add_done_callback(retrieve_exception)
        result = await asyncio.shield(task)
        self._changes += 1
        return result

    def write_blocking(self, work: Work[T]) -> T:
        """Run a unit as `write` does, but without retries."""
        result = self._thread_connection.write(work)
        self._changes += 1
        return result

    async def clock(self) -> int:
        """Return the time of the database server, in microseconds UTC."""
        present: int = await self.read(_CLOCK.value())
        return present

    def changes(self) -> int:
        self._refuse_when_closed()
        return self._changes

    def watch(self, topic: str, notify: Callable[[], None] | None = None) -> Callable[[], int]:
        """Return a function whose number changes with the notifications of a topic.

        A notification that was lost changes nothing: a caller must read again after some time.
        """
        self._refuse_when_closed()
        return self._listener.watch(topic, notify)

    def announce(self, run_id: str) -> None:
        self._listener.announce(run_id)

    def request_announcements(self, owner: str, run_ids: Iterable[str]) -> None:
        self._refuse_when_closed()
        self._listener.request_announcements(owner, run_ids)

    def load(self) -> Load:
        pool = self._pool
        is_notified = self._listener.is_heard
        return Load("postgres", pool.waiting, pool.in_use, self._entry.pool_size, is_notified)

    async def close(self) -> None:
        self._closed = True
        if self._writes:
            await asyncio.wait(self._writes)
        await self._listener.close()
        await call_in_thread(self._thread_connection.close)
        await self._pool.close()

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise errors.DatabaseClosed("The database is closed", cause=f"database {self.id!r}")

    async def _run_with_retries(
        self, run_once: Callable[[Work[T]], Awaitable[T]], work: Work[T]
    ) -> T:
        """Run a unit, and run it again if PostgreSQL has undone it.

        Raises:
            AgentctlError: the errors of the unit, and of `to_public_error`.
        """
        self._refuse_when_closed()
        conflict_retries = CONFLICT_RETRIES
        lost_retries = LOST_RETRIES

        while True:
            try:
                return await run_once(work)
            except errors.AgentctlError:
                raise
            except CONFLICTS as error:
                if not conflict_retries:
                    raise to_public_error(error, self.id) from None

                conflict_retries -= 1
                await asyncio.sleep(jitter(0, 0.01))
            except CONNECTION_LOST as error:
                self._pool.discard_open_connections()
                # If the server did not answer at all, the caller has waited long enough.
                if isinstance(error, _NO_ANSWER) or not lost_retries:
                    raise to_public_error(error, self.id) from None

                lost_retries -= 1
            except asyncpg.PostgresError as error:
                public_error = to_public_error(error, self.id)
                if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                    # Its server, or the setting of the session, stays read-only after a failover.
                    self._pool.discard_open_connections()

                if run_once == self._write and isinstance(error, _NOTHING_WRITABLE):
                    self._refused_at = time.monotonic()
                raise public_error from None

    async def _read(self, work: Work[T]) -> T:
        async with (await self._open_pool()).borrow() as connection:
            return await _run_read(connection, work, _SNAPSHOT, alone=work.single)

    async def _read_with_custom_plans(self, work: Work[T]) -> T:
        # Only a single unit uses the setting of the connection: other units have a transaction.
        async with (await self._open_pool()).borrow(custom_plans=work.single) as connection:
            alone = work.single and connection.has_custom_plans
            return await _run_read(connection, work, _LARGE_SNAPSHOT, alone=alone)

    async def _write(self, work: Work[T]) -> T:
        try:
            async with (await self._open_pool()).borrow() as connection:
                return await run_write(connection, work)
        except InDoubt as doubt:
            if await self._was_committed(doubt):
                result: T = doubt.result
                return result
            raise ConnectionResetError from None

    async def _was_committed(self, doubt: InDoubt) -> bool:
        """Return True if a transaction was committed. Ask until the database is back.

        Raises:
            OutcomeUnknown: the database did not report it within `statement_seconds`.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._entry.statement_seconds
        self._pool.discard_open_connections()

        while clock() < deadline:
            try:
                async with (await self._open_pool()).borrow() as connection:
                    row = await connection.fetchrow(_STATUS, doubt.transaction)
            except asyncpg.InvalidParameterValueError:
                # No transaction has had this id: after a crash PostgreSQL has forgotten ours.
                return False
            except (*CONNECTION_LOST, asyncpg.PostgresError, errors.Unavailable):
                row = None

            outcome = None if row is None else doubt.outcome(*row)
            if outcome is not None:
                return outcome

            await asyncio.sleep(_OUTCOME_RETRY_SECONDS)

        raise build_unknown_outcome()

    async def _open_pool(self) -> Pool:
        if not self._schema_checked:
            async with self._opening:
                if not self._schema_checked:
                    self.version = await prepare_schema(self._entry, create=self._create)
                    self._refuse_when_closed()
                    self._schema_checked = True
        return self._pool


async def _run_read(connection: PooledConnection, work: Work[T], begin: str, *, alone: bool) -> T:
    if alone:
        # A single statement is a snapshot already.
        try:
            return await run_unit(connection, work, alone=True)
        except SecondStatement:
            pass

    await connection.begin(begin)
    result = await run_unit(connection, work)
    connection.begin_statement()
    await connection.execute("COMMIT")
    return result
