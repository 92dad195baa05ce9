"""The connections to PostgreSQL compared with asyncpg alone, with the same units.

Both sides execute the same random units on one server. The units of a group run at once through
`PostgresDatabase`, each on separate rows, and one after the other through asyncpg. Some of their
callers are cancelled, and some connections are cut while a unit runs: the driver repeats it, and
asyncpg executes it without the cut. Results, errors and rows must be equal, and no session may keep
a transaction, a lock or a setting.
"""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import Any

import asyncpg

from agentctl import errors
from agentctl.store.database import Sql, Statement, Steps, single_unit, unit
from agentctl.store.postgres.database import PostgresDatabase
from tests.differential.comparison import Comparison, Outcome
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.postgres import ConnectedTo, postgres_database
from tests.store.test_pool_differences import STATE

OWNERS = 4
VALUES: dict[str, tuple[Any, ...]] = {
    "n": (None, 0, -1, 2**63 - 1, -(2**63), 2**63, "1", True, 1.5),
    "f": (None, 0.1, -0.0, 1e300, float("inf"), float("-inf"), float("nan"), 3, "x"),
    "t": (None, "", "a", "'", ":v", "$1", "\u00e4\U0001f600", "a\0b", "\ud800", "x" * 9_000, 1),
    "b": (None, b"", b"a\0b\xff", bytes(9_000), "text"),
    "x": (None, True, False, 1),
}
STATEMENTS = (
    *(f"INSERT INTO {{table}} (o, k, {column}) VALUES (:o, :k, :{column})" for column in VALUES),
    "INSERT INTO {table} (o, k, n) VALUES (:o, :k, :n) ON CONFLICT DO NOTHING RETURNING k",
    "UPDATE {table} SET t = :t WHERE o = :o AND k <= :k RETURNING k",
    "DELETE FROM {table} WHERE o = :o AND k = :k RETURNING n, t, b, f, x",
    "INSERT INTO {table}_parts (o, k) VALUES (:o, :k)",
    "SELECT k, n, f, t, b, x FROM {table} WHERE o = :o ORDER BY k",
    "SELECT count(*), 'a $1' FROM {table} WHERE o = :o AND (t = :t OR k > :k)",
    "SELECT v FROM absent",
    "SELECT FROM {table} WHERE",
    "SELECT 1 / (:k::int - :k::int)",
)
CUT = "SELECT pg_terminate_backend(pg_backend_pid())"
# Other tests use the same server: only transactions with a lock on the tables of this one count.
LEFT_OPEN = """
SELECT count(*) FROM pg_stat_activity AS other
WHERE pid <> pg_backend_pid() AND state LIKE 'idle in transaction%' AND EXISTS (
    SELECT 1 FROM pg_locks JOIN pg_class ON pg_class.oid = pg_locks.relation
    WHERE pg_locks.pid = other.pid AND relnamespace = current_schema()::regnamespace)
"""

Step = tuple[str, dict[str, Any]]


class Case:
    """A unit: its steps, whether it only reads, fails at its end, and loses its connection once."""

    def __init__(self, chance: Random, owner: int) -> None:
        self.reads = chance.random() < 0.3
        self.single = self.reads and chance.random() < 0.5
        texts = [text for text in STATEMENTS if not self.reads or text.startswith("SELECT")]
        self.steps: list[Step] = []
        for _ in range(1 if self.single else chance.randrange(1, 4)):
            values = {name: chance.choice(choice) for name, choice in VALUES.items()}
            self.steps.append(
                (chance.choice(texts), values | {"o": owner, "k": chance.randrange(6)})
            )
        self.fails = chance.random() < 0.1
        self.cut_at = chance.randrange(3) if not self.single and chance.random() < 0.1 else None
        self.size: Any = chance.choice(("small", "unknown", "large"))
        self.turns = chance.randrange(1, 30) if chance.random() < 0.2 else None

    def run(self, steps: list[Step]) -> Steps[list[Any]]:
        found = []
        for number, (text, values) in enumerate(steps):
            if number == self.cut_at:
                self.cut_at = None
                yield Statement(Sql(CUT), {})
            found.append((yield Statement(Sql(text.format(table="ours")), values)))
        if self.fails:
            raise LookupError("the code of the unit failed")
        return found

    async def run_on(self, database: PostgresDatabase) -> Outcome:
        try:
            if self.reads:
                kind = single_unit if self.single else unit
                result = await database.read(kind(self.run)(self.steps), size=self.size)
            else:
                result = await database.write(unit(self.run)(self.steps))
        except (errors.AgentctlError, LookupError) as error:
            return Outcome(type(error).__name__)
        return settle(result)

    async def run_by_library(self, connection: Any) -> Outcome:
        try:
            async with connection.transaction():
                result = [
                    await connection.fetch(*to_positions(text.format(table="theirs"), values))
                    for text, values in self.steps
                ]
                if self.fails:
                    raise LookupError
        except LookupError as error:
            return Outcome(type(error).__name__)
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            unstorable = isinstance(error.__cause__, UnicodeEncodeError) or isinstance(
                error, asyncpg.CharacterNotInRepertoireError
            )
            if isinstance(error, asyncpg.UndefinedTableError):
                return Outcome(errors.Unavailable.__name__)
            public = errors.ValidationFailed if unstorable else errors.InternalError
            return Outcome(public.__name__)
        return settle(result)

    def __repr__(self) -> str:
        return repr((self.reads, self.single, self.steps, self.fails, self.cut_at, self.size))


def settle(result: list[Any]) -> Outcome:
    return Outcome([[tuple(row) for row in rows] for rows in result])


def to_positions(text: str, values: dict[str, Any]) -> list[Any]:
    """Return a statement with numbers for its parameters, and their values."""
    names = list(dict.fromkeys(re.findall(r"(?<!:):([a-z])\b", text)))
    for number, name in enumerate(names, 1):
        text = re.sub(rf"(?<!:):{name}\b", f"${number}", text)
    return [text, *(values[name] for name in names)]


async def create_tables(connection: Any) -> None:
    for table in ("ours", "theirs"):
        await connection.execute(
            f"CREATE TABLE {table} (o bigint, k bigint, n bigint CHECK (n <> 0), f float8, t text,"
            " b bytea, x boolean, PRIMARY KEY (o, k));"
            f"CREATE TABLE {table}_parts (o bigint, k bigint, FOREIGN KEY (o, k) REFERENCES {table}"
            " DEFERRABLE INITIALLY DEFERRED)"
        )


async def run_group(database: PostgresDatabase, group: list[Case]) -> list[Outcome | None]:
    """Return the outcomes of units that run at once; None for those that are cancelled."""
    tasks = [asyncio.create_task(case.run_on(database)) for case in group]
    for case, task in zip(group, tasks, strict=True):
        for _ in range(case.turns or 0):
            await asyncio.sleep(0)
        if case.turns is not None:
            task.cancel()
    await asyncio.wait(tasks)
    # A write that was accepted runs to its end.
    while database._writes:
        await asyncio.wait(database._writes)
    return [None if task.cancelled() else task.result() for task in tasks]


async def check_state(database: PostgresDatabase, connection: Any) -> tuple[Any, ...]:
    """Compare the rows, and return the states of the sessions of the pool."""
    for name in ("", "_parts"):
        rows = [
            repr(
                [
                    tuple(row)
                    for row in await connection.fetch(
                        f"SELECT * FROM {table}{name} t ORDER BY o, k, t::text"
                    )
                ]
            )
            for table in ("ours", "theirs")
        ]
        assert rows[0] == rows[1]

    async def has_closed() -> bool:
        # The server notices the end of the connection of a cancelled unit a little later.
        return bool(await connection.fetchval(LEFT_OPEN) == 0)

    await wait_until(has_closed)
    load = database.load()
    assert (load.in_use, load.waiting) == (0, 0)
    found = await asyncio.gather(
        *(database.read(Sql(STATE).rows(lambda *row: row)) for _ in range(OWNERS))
    )
    return tuple(row for rows in found for row in rows)


def test_units_have_the_results_of_asyncpg(postgres_url: str) -> None:

    async def compare(under_test: Any, comparison: Comparison) -> set[Any]:
        states = set[Any]()
        database = under_test.database
        async with ConnectedTo(under_test.entry) as connection:
            await create_tables(connection)
            for _ in comparison.rounds(150):
                async with asyncio.timeout(PATIENCE):
                    group = [Case(comparison.chance, owner) for owner in range(OWNERS)]
                    for case, own in zip(group, await run_group(database, group), strict=True):
                        library = await case.run_by_library(connection)
                        if own is not None:
                            comparison.compare(case, own, library)
                    states.update(await check_state(database, connection))
        return states

    with postgres_database(postgres_url) as under_test, Comparison("PostgreSQL") as comparison:
        states = under_test.runner.run(compare(under_test, comparison))
        assert len(states) == 1, states
