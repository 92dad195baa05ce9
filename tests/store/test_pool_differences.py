"""The pool of connections compared with that of asyncpg, on one server.

The same random users work through both pools: they read, write, roll back, fail, are cancelled, run
into a limit of time, or lose their connection. Both pools must give the same results and commit the
same rows, and no user may find the session of an earlier one changed. Decision 33 has the one
difference: a connection that is lost at its commit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg

from agentctl.config.settings import Database
from agentctl.store.postgres.pool import Pool
from tests.differential.comparison import LONG, SEED, report
from tests.kit.conditions import PATIENCE

USERS = 5_000 if LONG else 200
SIZE = 3
LATE = "SELECT $1::int FROM pg_sleep(30)"
# Other tests use the same server, and `pg_sleep` as well.
END_LEFT = f"""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event = 'PgSleep' AND query = '{LATE}'
"""

Acquire = Callable[[], AbstractAsyncContextManager[Any]]
STATE = """
SELECT current_setting('statement_timeout'), current_setting('plan_cache_mode'),
    current_setting('search_path'), pg_current_xact_id_if_assigned() IS NULL,
    (SELECT count(*) FROM pg_cursors), (SELECT count(*) FROM pg_locks
        WHERE locktype = 'advisory' AND pid = pg_backend_pid())
"""
"""The parts of a session that a user could change for the next one."""


async def read(connection: Any, user: int) -> Any:
    return await connection.fetchval("SELECT $1::int", user)


async def write(connection: Any, user: int) -> Any:
    await connection.execute("BEGIN")
    await connection.execute("INSERT INTO pool_entries VALUES ($1)", user)
    await connection.execute("COMMIT")
    return user


async def roll_back(connection: Any, user: int) -> Any:
    await connection.execute("BEGIN")
    await connection.execute("INSERT INTO pool_entries VALUES ($1)", user)
    await connection.execute("ROLLBACK")


async def fail(connection: Any, user: int) -> Any:
    await connection.fetchval("SELECT 1 / ($1::int - $1::int)", user)


async def fail_in_transaction(connection: Any, user: int) -> Any:
    await connection.execute("BEGIN")
    await connection.execute("INSERT INTO pool_entries VALUES ($1)", user)
    await connection.execute("SELECT pg_advisory_xact_lock($1)", user)
    await fail(connection, user)


async def raise_in_transaction(connection: Any, user: int) -> Any:
    await connection.execute("BEGIN")
    await connection.execute("INSERT INTO pool_entries VALUES ($1)", user)
    raise RuntimeError("the code of the user failed")


async def run_late(connection: Any, user: int) -> Any:
    async with asyncio.timeout(0.01):
        return await connection.fetchval(LATE, user)


async def lose_connection(connection: Any, user: int) -> Any:
    await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")


ACTIONS = (
    read, read, write, write, roll_back, fail, fail_in_transaction, raise_in_transaction, run_late,
    lose_connection,
)  # fmt: skip


async def visit(acquire: Acquire, action: Any, user: int) -> Any:
    """Return the result of a user, or the class of its error, and the state that it found."""
    state: Any = None
    try:
        async with acquire() as connection:
            state = tuple(await connection.fetchrow(STATE))
            return state, await action(connection, user)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        if action is lose_connection:
            return state, "lost"
        return state, type(error).__name__
    except (TimeoutError, RuntimeError) as error:
        return state, type(error).__name__


async def visit_all(
    acquire: Acquire, observer: asyncpg.Connection[Any] | None = None
) -> tuple[list[Any], int]:
    """Execute the random users, some at once, and cancel some of them at a random await.

    Args:
        observer: a connection that ends the statements that users have left. The server executes
            them until its limit of time, and would run out of connections.

    Returns:
        The outcome of each user that is not cancelled, and the number of cancelled ones.
    """
    chance = random.Random(SEED)
    outcomes: list[Any] = []
    cancelled = 0
    user = 0
    while user < USERS:
        group = []
        for _ in range(chance.randrange(1, 2 * SIZE)):
            user += 1
            task = asyncio.create_task(visit(acquire, chance.choice(ACTIONS), user))
            group.append((task, chance.randrange(30) if chance.random() < 0.2 else None))
        for task, turns in group:
            if turns is not None:
                for _ in range(turns):
                    await asyncio.sleep(0)
                cancelled += task.cancel()
        results = await asyncio.gather(*(task for task, _ in group), return_exceptions=True)
        for (_, turns), result in zip(group, results, strict=True):
            assert turns is not None or not isinstance(result, BaseException), result
            outcomes.append(None if turns is not None else result)
        if observer is not None:
            await observer.execute(END_LEFT)
    return outcomes, cancelled


async def create_table(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE pool_entries (id int PRIMARY KEY)")
    await connection.close()


async def drop_table(url: str) -> list[int]:
    """Delete the table; return its rows."""
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("SELECT id FROM pool_entries ORDER BY id")
    await connection.execute("DROP TABLE pool_entries")
    await connection.close()
    return [row[0] for row in rows]


def test_users_of_the_pool_get_what_those_of_asyncpg_get(postgres_url: str) -> None:

    async def compare() -> None:
        limits = {"wait_seconds": PATIENCE, "statement_seconds": PATIENCE}
        ours = Pool(Database(id="main", url=postgres_url, pool_size=SIZE, **limits))
        theirs = await asyncpg.create_pool(postgres_url, min_size=0, max_size=SIZE)
        try:
            async with asyncio.timeout(PATIENCE * USERS / 100):
                await create_table(postgres_url)
                observer = await asyncpg.connect(postgres_url)
                our_outcomes, cancelled = await visit_all(ours.borrow, observer)
                await observer.close()
                our_entries = await drop_table(postgres_url)
                await create_table(postgres_url)
                their_outcomes, _ = await visit_all(theirs.acquire)
                their_entries = await drop_table(postgres_url)
        finally:
            await ours.close()
            theirs.terminate()
        states = {outcome[0] for outcome in our_outcomes if outcome and outcome[0]}
        assert len(states) == 1, states
        assert [each and each[1] for each in our_outcomes] == [
            each and each[1] for each in their_outcomes
        ]
        certain = {
            user for user, outcome in enumerate(our_outcomes, 1) if outcome and outcome[1] == user
        }
        uncertain = {user for user, outcome in enumerate(our_outcomes, 1) if outcome is None}
        assert set(our_entries) - uncertain == set(their_entries) - uncertain <= certain
        assert ours.in_use == ours.waiting == 0
        assert cancelled > 0

    asyncio.run(compare())
    report("PostgreSQL pool", USERS)
