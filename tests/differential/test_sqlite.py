"""The connections and the writer of SQLite, and the module sqlite3, with the same units."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentctl import errors
from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.sqlite.database import SqliteDatabase
from tests.differential.comparison import Comparison, Outcome

VALUES: tuple[Any, ...] = (
    None, 0, -1, 2**63 - 1, -(2**63), 2**63, -(2**80), True, 0.1, -0.0, 1e300, float("inf"),
    float("-inf"), float("nan"), b"", b"a\0b\xff", "", "a", "a\0b", "'", "\u00e4\U0001f600", ":v",
    "\ud800", "x" * 5_000,
)  # fmt: skip
STATEMENTS = (
    "INSERT INTO entries VALUES (:k, :v)", "INSERT INTO entries VALUES (:k, :v)",
    "INSERT INTO entries VALUES (:k, :v) ON CONFLICT DO NOTHING RETURNING k",
    "UPDATE entries SET v = :v WHERE k <= :k RETURNING k, v",
    "DELETE FROM entries WHERE k = :k RETURNING v", "SELECT k, v FROM entries ORDER BY k",
    "SELECT :v, typeof(:v), ':k', \"k\" FROM entries -- :x", "SELECT :v, :k",
    "INSERT INTO parts VALUES (:k)", "INSERT INTO entries VALUES (:k, NULL), (NULL, :v)",
    "SELECT v FROM absent", "SELECT FROM", "SELECT abs(-9223372036854775808)",
)  # fmt: skip
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE entries (k INTEGER NOT NULL UNIQUE, v);
CREATE TABLE parts (k INTEGER NOT NULL REFERENCES entries (k));
"""

Step = tuple[str, dict[str, Any]]


@unit
def run_steps(steps: list[Step], fails: bool) -> Steps[list[Any]]:
    found = []
    for sql, values in steps:
        found.append((yield Statement(Sql(sql), values)))
    if fails:
        raise LookupError("the code of the unit failed")
    return found


def pick_steps(chance: Random) -> list[Step]:
    return [
        (chance.choice(STATEMENTS), {"k": chance.randrange(12), "v": chance.choice(VALUES)})
        for _ in range(chance.randrange(1, 4))
    ]


def settle(result: Any) -> Outcome:
    if isinstance(result, BaseException):
        return Outcome(type(result).__name__)
    return Outcome([[tuple(row) for row in rows] for rows in result])


def run_by_library(connection: sqlite3.Connection, steps: list[Step], fails: bool) -> Outcome:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = [connection.execute(sql, values).fetchall() for sql, values in steps]
        if fails:
            raise LookupError
    except (sqlite3.Error, OverflowError, LookupError, UnicodeEncodeError) as error:
        connection.execute("ROLLBACK")
        public: type[BaseException] = type(error)
        if isinstance(error, sqlite3.Error):
            public = errors.InternalError
        elif isinstance(error, UnicodeEncodeError):
            public = errors.ValidationFailed
        return Outcome(public.__name__)
    connection.execute("COMMIT")
    return settle(result)


class Files:
    """A file of each side, and a connection that looks at ours."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / "ours.db", folder / "theirs.db"]
        self.library, self.observer = (self._connect(path) for path in reversed(self.paths))
        self.ours = SqliteDatabase("main", self.paths[0])

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, timeout=0)
        connection.executescript(SCHEMA)
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def compare_state(self) -> None:
        """Compare the rows, and check that nothing holds the lock of a writer."""
        self.observer.execute("BEGIN IMMEDIATE")
        self.observer.execute("ROLLBACK")
        for table in ("entries", "parts"):
            rows = [
                repr(each.execute(f"SELECT * FROM {table} ORDER BY k").fetchall())
                for each in (self.observer, self.library)
            ]
            assert rows[0] == rows[1]


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    opened = Files(tmp_path)
    yield opened
    opened.ours.close_blocking()
    opened.library.close()
    opened.observer.close()


async def write_group(
    files: Files, group: list[tuple[list[Step], bool]], turns: list[int | None]
) -> list[Any]:
    """Write units at once; cancel some of them after a number of turns of the event loop."""
    tasks = [asyncio.create_task(files.ours.write(run_steps(*each))) for each in group]
    await asyncio.sleep(0)
    for task, count in zip(tasks, turns, strict=True):
        for _ in range(count or 0):
            await asyncio.sleep(0)
        if count is not None:
            task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_units_have_the_results_of_sqlite3(files: Files) -> None:
    with Comparison("SQLite") as comparison, asyncio.Runner() as runner:
        chance = comparison.chance
        for _ in comparison.rounds(150):
            group = [
                (pick_steps(chance), chance.random() < 0.1) for _ in range(chance.randrange(1, 6))
            ]
            turns = [chance.randrange(4) if chance.random() < 0.2 else None for _ in group]
            found = runner.run(write_group(files, group, turns))
            # It runs after the cancelled units, which run as well.
            runner.run(files.ours.write(run_steps([("SELECT 1", {})], False)))
            for (steps, fails), result in zip(group, found, strict=True):
                library = run_by_library(files.library, steps, fails)
                if not isinstance(result, asyncio.CancelledError):
                    comparison.compare((steps, fails), settle(result), library)
            files.compare_state()
            compare_read(files, runner, comparison, pick_reads(chance))


def pick_reads(chance: Random) -> list[Step]:
    reads = [step for _ in range(4) for step in pick_steps(chance) if step[0][:6] == "SELECT"]
    return reads[:2] or [("SELECT :v", {"v": chance.choice(VALUES)})]


def compare_read(
    files: Files, runner: asyncio.Runner, comparison: Comparison, steps: list[Step]
) -> None:
    size: Any = comparison.chance.choice(("small", "unknown", "large", "run"))

    async def read() -> list[Any]:
        return await asyncio.gather(
            files.ours.read(run_steps(steps, False), size=size), return_exceptions=True
        )

    comparison.compare(
        (size, steps), settle(runner.run(read())[0]), run_by_library(files.library, steps, False)
    )
    assert files.ours.load().in_use == 0
