"""Two changes of a PostgreSQL database that tests pause between their statements.

The code under test is the real one. Only the connection of a unit is replaced: it waits at a
`Barrier` before each statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import asyncpg
import pytest

from agentctl import errors
from agentctl.runs.life.admission import IdempotentReplay
from agentctl.store.database import Work
from agentctl.store.postgres import connection as postgres_connection
from agentctl.store.postgres import database, failures
from tests.kit.conditions import PATIENCE

__all__ = ["Barrier", "Change", "together", "undone"]

Change = Callable[[], Awaitable[Any]]

_BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1) AND wait_event_type = 'Lock'"

_barrier: ContextVar[Barrier | None] = ContextVar("barrier", default=None)


class Barrier:
    """Lets the units of one change execute a number of statements, and blocks until it is opened.

    Args:
        statements: number of statements before it blocks.
    """

    def __init__(self, statements: int) -> None:
        self._left = statements
        self.reached = asyncio.Event()
        self.pids = set[int]()
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def enter(self, pid: int) -> None:
        self.pids.add(pid)
        if not self._left and not self._open.is_set():
            self.reached.set()
            await self._open.wait()
        self._left -= 1


class _BarrierConnection:
    """A connection whose statements pass a barrier."""

    def __init__(self, connection: Any, barrier: Barrier) -> None:
        self._connection = connection
        self._barrier = barrier

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, *args: Any) -> Any:
        await self._barrier.enter(self._connection.get_server_pid())
        return await self._connection.fetch(*args)


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Install the barriers of `together`; list the conflicts, such as deadlocks, that PostgreSQL
    rolled back."""
    found: list[str] = []

    def pause(run: Callable[[Any, Work[Any]], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def transact(connection: Any, work: Work[Any]) -> Any:
            barrier = _barrier.get()
            through = connection if barrier is None else _BarrierConnection(connection, barrier)
            try:
                return await run(through, work)
            except failures.CONFLICTS as conflict:
                found.append(type(conflict).__name__)
                raise

        return transact

    monkeypatch.setattr(database, "run_write", pause(postgres_connection.run_write))
    return found


async def together(
    watch: asyncpg.Connection[Any], first: Change, second: Change, statements: int, later: int
) -> tuple[list[str], bool]:
    """Start a change, start another one, end the first, end the second.

    Args:
        watch: connection that shows which changes wait for a lock.
        statements: number of statements of the first change before the second one starts.
        later: number of statements of the second change, unless it has to wait, before the first
            one continues.

    Returns:
        The results of the two, and True if the first one had more statements.
    """
    barriers = Barrier(statements), Barrier(later)
    tasks = list[asyncio.Task[str]]()
    try:
        for change, barrier in zip((first, second), barriers, strict=True):
            _barrier.set(barrier)
            tasks.append(asyncio.create_task(_told(change)))
            await _resting(watch, tasks[-1], barrier)
        more = barriers[0].reached.is_set()
        _barrier.set(None)
        barriers[0].open()
        await _resting(watch, tasks[0], barriers[0], opened=True)
        barriers[1].open()
        async with asyncio.timeout(PATIENCE):
            return [await task for task in tasks], more
    finally:
        # A change that is left would keep its connection, and the service could not close.
        for barrier in barriers:
            barrier.open()


async def _resting(
    watch: asyncpg.Connection[Any],
    task: asyncio.Task[str],
    barrier: Barrier,
    *,
    opened: bool = False,
) -> None:
    """Wait until a change has ended, is blocked by its barrier, or waits for a lock."""
    async with asyncio.timeout(PATIENCE):
        while not task.done() and (opened or not barrier.reached.is_set()):
            await asyncio.wait([task], timeout=0.002)
            if barrier.pids and await watch.fetchval(_BLOCKED, barrier.pids):
                return


async def _told(change: Change) -> str:
    try:
        return repr(await change())
    except (errors.AgentctlError, IdempotentReplay) as error:
        return f"{type(error).__name__}: {error}"
