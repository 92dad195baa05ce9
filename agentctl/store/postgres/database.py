"""The PostgreSQL driver: a pool of connections, a unit on one of them at a time.

What PostgreSQL has undone is run again: a deadlock or a serialization failure up to three times, a
connection that was lost once. A commit whose answer was lost is asked about on another connection,
by the id of its transaction, so that nothing is lost and nothing is done twice; what PostgreSQL
cannot tell after a crash is called unknown (docs/decisions/0027).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

import asyncpg

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.store.database import Large, Load, Sql, Statement, Steps, Work, unit
from agentctl.store.postgres.connection import (
    CONFLICTS,
    CONNECTION_LOST,
    LAST_CRASH,
    Connection,
    InDoubt,
    Longer,
    build_unknown_outcome,
    run_steps,
    run_transaction,
    to_public_error,
)
from agentctl.store.postgres.listener import Listener
from agentctl.store.postgres.pool import Pool
from agentctl.store.postgres.schema import prepare_schema
from agentctl.store.postgres.thread import ThreadConnection

__all__ = ["PostgresDatabase"]

T = TypeVar("T")

CONFLICT_RETRIES = 3
LOST_RETRIES = 1

_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

# A plan for any values takes every user for an average one, and sorts the 30,000 sessions of one
# who is not to show the last 20 (docs/decisions/0025). To plan anew costs less than a list does.
_LARGE_SNAPSHOT = f"{_SNAPSHOT}; SET LOCAL plan_cache_mode = force_custom_plan"

_CLOCK = Sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")

_STATUS = f"SELECT pg_xact_status($1::text::xid8), {LAST_CRASH}"

_ASK_AGAIN_SECONDS = 0.1


class PostgresDatabase:
    """A database of a PostgreSQL server (`database.Database`).

    It connects, and looks at its schema, when it is first used or `check` is called.

    Args:
        entry: where it is, and the bounds on its use.
        create: make the tables where there are none.
    """

    def __init__(self, entry: Entry, *, create: bool) -> None:
        self.id = entry.id
        self._entry = entry
        self._create = create
        self._closed = False
        self._opening = asyncio.Lock()
        self._is_ours = False
        self._pool = Pool(entry)
        self._apart = ThreadConnection(entry)
        self._listener = Listener(entry)
        self._writing: set[asyncio.Task[Any]] = set()
        self._longer: set[CodeType] = set()

    @property
    def lock_folder(self) -> Path | None:
        """None: processes of many machines share no files. Their pids and their beats tell."""
        return None

    async def check(self) -> None:
        """Connect, and see that the schema is ours.

        Raises:
            Unavailable: the database does not answer, or there are no tables.
            SchemaMismatch: its schema is older or newer than this code.
        """
        try:
            await self._opened()
        except Exception as error:
            raise to_public_error(error, self.id) from None

    async def read(self, work: Work[T], *, large: Large = False) -> T:
        """Run a unit that only reads, on one snapshot. `large`: its statements are planned for the
        values that they have. No read of any size is on the event loop."""
        return await self._patiently(self._read_much if large else self._read, work)

    async def write(self, work: Work[T]) -> T:
        """Run a unit in one transaction; returns once it is durable.

        A unit that was handed over runs even when the waiting task is cancelled.
        """
        task = asyncio.create_task(self._patiently(self._write, work))
        self._writing.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    def write_blocking(self, work: Work[T]) -> T:
        """Like `write`, for a thread without an event loop, which it holds up; tried once."""
        return self._apart.write(work)

    async def clock(self) -> int:
        """What the time is for the database."""
        return await self.read(_present())

    def changes(self) -> int:
        """A number that changes when the database was written to, by whichever server."""
        self._refuse_when_closed()
        self._listener.start()
        return self._listener.heard

    def load(self) -> Load:
        """How busy the pool is."""
        pool = self._pool
        return Load("postgres", pool.waiting, pool.in_use, self._entry.pool_size)

    async def close(self) -> None:
        """Finish the writes that were handed over, then close every connection."""
        self._closed = True
        if self._writing:
            await asyncio.wait(self._writing)
        await self._listener.close()
        await asyncio.to_thread(self._apart.close)
        await self._pool.close()

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise errors.Unavailable("The database is closed", cause=f"database {self.id!r}")

    def _written(self, task: asyncio.Task[Any]) -> None:
        """Nobody may be there any more to be told how it ended."""
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()

    async def _patiently(self, once: Callable[[Work[T]], Awaitable[T]], work: Work[T]) -> T:
        """Run a unit, again when what undid it had nothing to do with it."""
        self._refuse_when_closed()
        conflicts, losses = CONFLICT_RETRIES, LOST_RETRIES
        while True:
            try:
                return await once(work)
            except errors.AgentctlError:
                raise
            except CONFLICTS as error:
                if not conflicts:
                    raise to_public_error(error, self.id) from None
                conflicts -= 1
                await asyncio.sleep(random.uniform(0, 0.01))
            except CONNECTION_LOST as error:
                self._pool.discard_open_connections()
                if not losses or not self._is_worth_a_retry(error):
                    raise to_public_error(error, self.id) from None
                losses -= 1
            except asyncpg.PostgresError as error:
                raise to_public_error(error, self.id) from None

    @staticmethod
    def _is_worth_a_retry(error: BaseException) -> bool:
        """Not when nobody answered at all, which the caller has waited for long enough."""
        return not isinstance(error, TimeoutError | ConnectionRefusedError | FileNotFoundError)

    async def _read(self, work: Work[T]) -> T:
        """A single statement is a snapshot already. That a unit has more shows when it asks for the
        second one: then it begins again inside a transaction, and so do its like from then on."""
        async with (await self._opened()).borrow() as connection:
            if work.code not in self._longer:
                with contextlib.suppress(Longer):
                    return await run_steps(connection, iter(work), most=1)
                self._longer.add(work.code)
            return await _on_snapshot(connection, work, _SNAPSHOT)

    async def _read_much(self, work: Work[T]) -> T:
        async with (await self._opened()).borrow() as connection:
            return await _on_snapshot(connection, work, _LARGE_SNAPSHOT)

    async def _write(self, work: Work[T]) -> T:
        try:
            async with (await self._opened()).borrow() as connection:
                return await run_transaction(connection, work)
        except InDoubt as doubt:
            if await self._was_committed(doubt):
                result: T = doubt.result
                return result
            raise ConnectionResetError from None

    async def _was_committed(self, doubt: InDoubt) -> bool:
        """Ask what became of a transaction, for as long as the database may take to come back.

        Raises:
            OutcomeUnknown: nobody could tell in time.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._entry.statement_seconds
        self._pool.discard_open_connections()
        while clock() < deadline:
            outcome = await self._asked(doubt)
            if outcome is not None:
                return outcome
            await asyncio.sleep(_ASK_AGAIN_SECONDS)
        raise build_unknown_outcome()

    async def _asked(self, doubt: InDoubt) -> bool | None:
        try:
            async with (await self._opened()).borrow() as connection:
                told = await connection.fetchrow(_STATUS, doubt.transaction)
        except asyncpg.InvalidParameterValueError:
            # No transaction had this id yet: a crash has made PostgreSQL forget ours.
            return False
        except (*CONNECTION_LOST, asyncpg.PostgresError, errors.Unavailable):
            return None
        return None if told is None else doubt.outcome(*told)

    async def _opened(self) -> Pool:
        """The pool, once the schema was found to be ours."""
        if not self._is_ours:
            async with self._opening:
                if not self._is_ours:
                    await prepare_schema(self._entry, create=self._create)
                    self._refuse_when_closed()
                    self._is_ours = True
        return self._pool


@unit
def _present() -> Steps[int]:
    rows = yield Statement(_CLOCK)
    present: int = rows[0][0]
    return present


async def _on_snapshot(connection: Connection, work: Work[T], begin: str) -> T:
    await connection.execute(begin)
    result = await run_steps(connection, iter(work))
    await connection.execute("COMMIT")
    return result
