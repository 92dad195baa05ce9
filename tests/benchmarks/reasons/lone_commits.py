"""The cost of a commit by the writer thread, alone and with others (docs/decisions/0112).

`python -m tests.benchmarks.reasons.lone_commits [FOLDER]`: the file is in FOLDER, by default that
of temporary files. A folder in memory, such as /dev/shm, shows the costs without the disk. "On the
loop" is the same unit and commit without a thread, which blocks the event loop for the time shown.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from agentctl.service.service import Service
from agentctl.store.database import Database
from agentctl.store.repositories import runs, sessions
from agentctl.store.sqlite.connection import connect_writer, run_unit
from tests.benchmarks.work import create_work
from tests.deployment import Deployment
from tests.store.rows import a_run, a_session

COUNT = 320
ROUNDS = 5
TOGETHER = 16

SESSION = "alone"


async def write_each(database: Database, names: list[str]) -> None:
    for name in names:
        await database.write(runs.create(a_run(name, SESSION)))


async def write_together(database: Database, names: list[str]) -> None:
    parts = [names[number::TOGETHER] for number in range(TOGETHER)]
    await asyncio.gather(*(write_each(database, part) for part in parts))


def build_direct_writes(path: Path) -> Callable[[Database, list[str]], Coroutine[Any, Any, None]]:
    connection = connect_writer(path)

    async def write_directly(_: Database, names: list[str]) -> None:
        for name in names:
            connection.execute("BEGIN IMMEDIATE")
            run_unit(connection, runs.create(a_run(name, SESSION)))
            connection.execute("COMMIT")

    return write_directly


async def main(folder: Path) -> None:
    """Measure the kinds of writes in turns, and print medians for one write."""
    work = create_work(folder / "work", "http://127.0.0.1:9", [])
    async with Service.open(Deployment(work.folder).settings, create=True) as service:
        database = service.hosting.databases["main"]
        await database.write(sessions.create(a_session(SESSION)))
        acts = {
            "one at a time, by the writer thread": write_each,
            f"{TOGETHER} at a time, by the writer thread": write_together,
            "one at a time, on the loop": build_direct_writes(work.folder / "agentctl.db"),
        }
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in acts}
        for number in range(ROUNDS):
            for name, act in acts.items():
                names = [f"{name} {number} {count}" for count in range(COUNT)]
                before = resource.getrusage(resource.RUSAGE_SELF)
                start = time.perf_counter()
                await act(database, names)
                took = time.perf_counter() - start
                after = resource.getrusage(resource.RUSAGE_SELF)
                user = after.ru_utime - before.ru_utime
                system = after.ru_stime - before.ru_stime
                found[name].append((user + system, system, took))
        for name, values in found.items():
            cpu, system, took = (
                statistics.median(value[column] for value in values) / COUNT * 1e6
                for column in range(3)
            )
            print(f"{name:36} CPU {cpu:5.0f} us, kernel {system:5.0f} us, time {took:6.0f} us")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as name:
        uvloop.run(main(Path(name)))
