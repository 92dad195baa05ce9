"""The slots of the pool of connections, on connections that the test holds in its hand.

`test_pool_differences.py` compares the pool with that of asyncpg on a server.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentctl.config.settings import Database
from agentctl.errors import Unavailable
from agentctl.store.postgres import pool as pools
from agentctl.store.postgres.pool import IDLE_SECONDS, Pool
from tests.kit.clock import pass_time
from tests.kit.conditions import PATIENCE, wait_until

WAIT_SECONDS = PATIENCE
"""The time for a connection, which passes only if the test lets it pass."""


class FakeConnection:
    """A connection without a server."""

    def __init__(self) -> None:
        self.born = asyncio.get_running_loop().time()
        self.used = self.born
        self.answer_seconds = float("inf")
        self.deadline = float("inf")
        self.timed_out = False
        self.is_to_standby = False
        self.is_shared = False
        self.has_custom_plans = False
        self.in_transaction = False
        self.rollback_error: BaseException | None = None
        self.close_error: Exception | None = None
        self.is_closed_in_order = False
        self.is_terminated = False

    def begin_statement(self) -> None:
        self.deadline = asyncio.get_running_loop().time() + self.answer_seconds

    async def set_custom_plans(self, enabled: bool) -> None:
        self.has_custom_plans = enabled

    def is_closed(self) -> bool:
        return self.is_terminated

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    async def execute(self, statement: str) -> None:
        assert statement == "ROLLBACK"
        if self.rollback_error is not None:
            raise self.rollback_error
        self.in_transaction = False

    def terminate(self) -> None:
        self.is_terminated = True

    async def close(self, timeout: float) -> None:
        if self.close_error is not None:
            raise self.close_error
        self.is_closed_in_order = True


class Server:
    """The server that a pool connects to."""

    def __init__(self) -> None:
        self.connections: list[FakeConnection] = []
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def connect(self, entry: Database, **options: Any) -> FakeConnection:
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        connection = FakeConnection()
        self.connections.append(connection)
        return connection


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(pools, "connect", server.connect)
    return server


def open_pool(size: int = 1) -> Pool:
    url = "postgresql://none/none"
    return Pool(Database("main", url, pool_size=size, wait_seconds=WAIT_SECONDS))


def set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def hold(pool: Pool, released: asyncio.Event) -> None:
    """Borrow a connection until an event."""
    async with pool.borrow():
        await released.wait()


async def test_failed_connection_leaves_its_slot_to_the_next_task(server: Server) -> None:
    pool = open_pool()
    server.answers.clear()
    server.error = ConnectionRefusedError()
    first = asyncio.create_task(hold(pool, asyncio.Event()))
    released = asyncio.Event()
    second = asyncio.create_task(hold(pool, released))
    await wait_until(lambda: pool.waiting == 1)

    server.answers.set()
    with pytest.raises(ConnectionRefusedError):
        await first
    server.error = None
    released.set()
    await wait_until(second.done)
    assert isinstance(second.exception(), ConnectionRefusedError)
    await hold(pool, released)
    assert len(server.connections) == 1


async def test_task_that_waits_too_long_for_a_slot_is_refused(server: Server) -> None:
    pool = open_pool()
    released = asyncio.Event()
    holder = asyncio.create_task(hold(pool, released))
    await wait_until(lambda: pool.in_use == 1)

    late = asyncio.create_task(hold(pool, released))
    await wait_until(lambda: pool.waiting == 1)
    await pass_time(WAIT_SECONDS)
    with pytest.raises(Unavailable, match="The database is busy"):
        await late

    # Its wait has taken no slot.
    released.set()
    await holder
    await hold(pool, released)
    assert (pool.in_use, pool.waiting) == (0, 0)


async def test_cancelled_task_passes_on_the_slot_that_it_got(server: Server) -> None:
    pool = open_pool()
    async with pool.borrow():
        released = asyncio.Event()
        waiters = [asyncio.create_task(hold(pool, released)) for _ in range(2)]
        await wait_until(lambda: pool.waiting == 2)

    # The first one has the slot now, but its task learns of the cancel first.
    waiters[0].cancel()
    released.set()
    await wait_until(waiters[1].done)
    assert waiters[0].cancelled()
    assert (pool.in_use, pool.waiting) == (0, 0)


async def test_connection_that_is_idle_for_too_long_is_closed(server: Server) -> None:
    pool = open_pool(size=2)
    released = asyncio.Event()
    tasks = [asyncio.create_task(hold(pool, released)) for _ in range(2)]
    await wait_until(lambda: pool.in_use == 2)
    released.set()
    await asyncio.gather(*tasks)

    unused, used = server.connections
    timer = asyncio.create_task(asyncio.sleep(IDLE_SECONDS + 1))
    await pass_time(IDLE_SECONDS + 1)
    await timer
    # The last used connection is taken first, so the other one becomes too old.
    await hold(pool, released)
    assert (unused.is_terminated, used.is_terminated) == (True, False)
    await hold(pool, released)
    assert len(server.connections) == 2


async def test_connection_whose_response_is_late_is_terminated(server: Server) -> None:
    pool = open_pool(size=2)
    late_seconds = 100

    async def wait_for_response() -> None:
        async with pool.borrow() as connection:
            while not connection.is_closed():
                await asyncio.sleep(0)
            raise ConnectionResetError

    waiting = asyncio.create_task(wait_for_response())
    await wait_until(lambda: pool.in_use == 1)
    (connection,) = server.connections
    timer = asyncio.create_task(asyncio.sleep(late_seconds))
    await pass_time(late_seconds)
    await timer
    with pytest.raises(TimeoutError):
        await waiting
    assert connection.timed_out


async def test_connections_of_before_a_loss_are_not_used_again(server: Server) -> None:
    pool = open_pool()
    await hold(pool, set_event())
    pool.discard_open_connections()
    await hold(pool, set_event())
    assert [connection.is_terminated for connection in server.connections] == [True, False]


async def test_connection_of_a_cancelled_task_is_terminated(server: Server) -> None:
    pool = open_pool()
    holder = asyncio.create_task(hold(pool, asyncio.Event()))
    await wait_until(lambda: pool.in_use == 1)
    holder.cancel()
    await asyncio.wait([holder])
    assert server.connections[0].is_terminated


async def fail_in_transaction(pool: Pool, rollback_error: BaseException | None) -> None:
    async with pool.borrow() as connection:
        held: Any = connection
        held.in_transaction = True
        held.rollback_error = rollback_error
        raise KeyError


@pytest.mark.parametrize(
    ("rollback_error", "raised"),
    [(None, KeyError), (ConnectionResetError(), KeyError), (MemoryError(), MemoryError)],
)
async def test_failed_task_rolls_its_transaction_back(
    server: Server, rollback_error: BaseException | None, raised: type[BaseException]
) -> None:
    pool = open_pool()
    with pytest.raises(raised):
        await fail_in_transaction(pool, rollback_error)
    assert server.connections[0].is_terminated == (rollback_error is not None)
    assert pool.in_use == 0


async def test_large_reads_get_half_of_the_connections(server: Server) -> None:
    pool = open_pool(size=2)
    async with pool.reserve_for_large_read():
        late = asyncio.create_task(reserve(pool))
        await pass_time(WAIT_SECONDS)
        with pytest.raises(Unavailable, match="The database is busy"):
            await late
    await reserve(pool)


async def reserve(pool: Pool) -> None:
    async with pool.reserve_for_large_read():
        pass


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
async def test_closed_pool_ends_its_idle_connections(
    server: Server, error: Exception | None
) -> None:
    pool = open_pool()
    await hold(pool, set_event())
    (connection,) = server.connections
    connection.close_error = error
    await pool.close()
    assert (connection.is_closed_in_order, connection.is_terminated) == (not error, bool(error))
