"""Two changes of a PostgreSQL database, stopped between their statements and let go on by hand.

Behind the real doors: only the connection on which a unit runs is another one, which waits at its
gate before each statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import asyncpg
import pytest

from agentctl import errors
from agentctl.runs.admission import IdempotentReplay
from agentctl.store.database import Work
from agentctl.store.postgres import connection as postgres_connection
from agentctl.store.postgres import database

__all__ = ["Change", "Gate", "together", "undone"]

Change = Callable[[], Awaitable[Any]]

SECONDS = 10.0

_BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1) AND wait_event_type = 'Lock'"

_gate: ContextVar[Gate | None] = ContextVar("gate", default=None)


class Gate:
    """Lets the units of one change run so many statements, and no more until it is opened.

    Args:
        statements: how many.
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


class _Gated:
    """A connection whose statements pass a gate."""

    def __init__(self, connection: Any, gate: Gate) -> None:
        self._connection = connection
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetch(self, *args: Any) -> Any:
        await self._gate.enter(self._connection.get_server_pid())
        return await self._connection.fetch(*args)


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Changes that are made by `together` pass their gates; what PostgreSQL has to undo for the
    sake of others, as a deadlock, is named here."""
    found: list[str] = []

    async def transact(connection: Any, work: Work[Any]) -> Any:
        gate = _gate.get()
        through = connection if gate is None else _Gated(connection, gate)
        try:
            return await postgres_connection.run_transaction(through, work)
        except postgres_connection.CONFLICTS as conflict:
            found.append(type(conflict).__name__)
            raise

    monkeypatch.setattr(database, "run_transaction", transact)
    return found


async def together(
    watch: asyncpg.Connection[Any], first: Change, second: Change, statements: int, later: int
) -> tuple[list[str], bool]:
    """Begin a change, begin another one, end the first, end the second.

    Args:
        watch: sees who waits for a lock.
        statements: how many the first one runs before the second one begins.
        later: how many the second one runs, unless it has to wait, before the first goes on.

    Returns:
        What came of the two; and whether the first one had more statements.
    """
    gates = Gate(statements), Gate(later)
    tasks = list[asyncio.Task[str]]()
    for change, gate in zip((first, second), gates, strict=True):
        _gate.set(gate)
        tasks.append(asyncio.create_task(_told(change)))
        await _resting(watch, tasks[-1], gate)
    more = gates[0].reached.is_set()
    _gate.set(None)
    gates[0].open()
    await _resting(watch, tasks[0], gates[0], opened=True)
    gates[1].open()
    async with asyncio.timeout(SECONDS):
        return [await task for task in tasks], more


async def _resting(
    watch: asyncpg.Connection[Any], task: asyncio.Task[str], gate: Gate, *, opened: bool = False
) -> None:
    """Wait until a change has ended, stands at its gate, or waits for a lock."""
    async with asyncio.timeout(SECONDS):
        while not task.done() and (opened or not gate.reached.is_set()):
            await asyncio.wait([task], timeout=0.002)
            if gate.pids and await watch.fetchval(_BLOCKED, gate.pids):
                return


async def _told(change: Change) -> str:
    try:
        return repr(await change())
    except (errors.AgentctlError, IdempotentReplay) as error:
        return f"{type(error).__name__}: {error}"
