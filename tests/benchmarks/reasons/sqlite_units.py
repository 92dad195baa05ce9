"""Writes and reads of SQLite by the driver of agentctl and by aiosqlite.

`python -m tests.benchmarks.reasons.sqlite_units [FOLDER]` needs aiosqlite: pip install aiosqlite.
Printed are the microseconds of a write of one row in one transaction, one at a time and 16 at a
time, and of a read of a row: the medians of the rounds, and the medians of their ratios.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from agentctl.store.database import Sql
from agentctl.store.sqlite.database import SqliteDatabase

ROUNDS = 9
COUNT = 320
TOGETHER = 16
SCHEMA = "PRAGMA journal_mode = WAL; CREATE TABLE entries (v TEXT)"
INSERT = Sql("INSERT INTO entries VALUES (:v)")
READ = Sql("SELECT v FROM entries WHERE rowid = :k")

Call = Callable[[], Awaitable[Any]]


def create(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)
    connection.close()
    return path


async def measure(call: Call, together: int) -> float:
    """Return the microseconds of a call."""

    async def repeat() -> None:
        for _ in range(COUNT // together):
            await call()

    began = time.perf_counter()
    await asyncio.gather(*(repeat() for _ in range(together)))
    return (time.perf_counter() - began) / COUNT * 1e6


async def compare(folder: Path) -> None:
    """Measure both in turns, and print the table."""
    import aiosqlite  # type: ignore[import-not-found]

    ours = SqliteDatabase("main", create(folder / "ours.db"))
    theirs = await aiosqlite.connect(create(folder / "theirs.db"), isolation_level=None)
    await theirs.execute("PRAGMA synchronous = FULL")
    lock = asyncio.Lock()

    async def write_by_library() -> None:
        # One connection has one transaction at a time.
        async with lock:
            await theirs.execute("BEGIN IMMEDIATE")
            await theirs.execute(INSERT, {"v": "x"})
            await theirs.execute("COMMIT")

    cases: dict[str, tuple[Call, Call, int]] = {
        "a write, one at a time": (lambda: ours.write(INSERT.execute(v="x")), write_by_library, 1),
        f"a write, {TOGETHER} at a time": (
            lambda: ours.write(INSERT.execute(v="x")),
            write_by_library,
            TOGETHER,
        ),
        "a read of a row": (
            lambda: ours.read(READ.value(k=1)),
            lambda: theirs.execute_fetchall(READ, {"k": 1}),
            1,
        ),
    }
    print("| | agentctl, us | aiosqlite, us | ratio |\n| --- | ---: | ---: | ---: |")
    for name, (own, library, together) in cases.items():
        rounds = [
            (await measure(own, together), await measure(library, together)) for _ in range(ROUNDS)
        ]
        mine, other = (median(values) for values in zip(*rounds, strict=True))
        ratio = median(one / two for one, two in rounds)
        print(f"| {name} | {mine:.0f} | {other:.0f} | {ratio:.2f} |")
    await theirs.close()
    await ours.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as name:
        uvloop.run(compare(Path(name)))
