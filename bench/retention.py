"""The time of removals of idle sessions, and the delay of other writes meanwhile.

python -m bench.retention [--postgres] [--sessions 20000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agentctl.config import settings
from agentctl.config.retention import Retention
from agentctl.records.times import DAY, now
from agentctl.runs.jobs.cleanup import Ages, delete_idle_sessions
from agentctl.store.database import Database, Steps, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import retention, sessions
from agentctl.store.repositories.retention import IdleSessions
from tests.kit.postgres import postgres_schemas, running_postgres
from tests.kit.rows import a_run, a_session, a_whole_run, an_end

RUNS = 5
PRUNED = 100
TEXT = json.dumps([{"role": "user", "content": "word " * 400}])
"""The messages of a run: 2 KB."""


@unit
def create(first: int, count: int, at: int) -> Steps[None]:
    for number in range(first, first + count):
        name = f"s{number:07}"
        yield from sessions.create(a_session(name, component_id="echo", now=at + number))
        for turn in range(RUNS):
            run_id = f"{name}-{turn}"
            end = an_end(run_id, messages=TEXT, finished_at=at + number, stopped_at=at + number)
            yield from a_whole_run(a_run(run_id, name, created_at=at + number), end)


@unit
def write_one(number: int) -> Steps[None]:
    yield from sessions.create(a_session(f"new-{number}", now=now()))


async def measure_writes(database: Database, prefix: int, stop: asyncio.Event) -> list[float]:
    """Return the milliseconds of small writes, one every 5 ms, until `stop` is set."""
    times = list[float]()
    while not stop.is_set():
        began = time.perf_counter()
        await database.write(write_one(prefix + len(times)))
        times.append((time.perf_counter() - began) * 1_000)
        await asyncio.sleep(0.005)
    return times


def describe(name: str, times: list[float]) -> str:
    ordered = sorted(times)
    p99 = ordered[int(len(ordered) * 0.99)]
    slowest = ordered[-1]
    return (
        f"{name}: {len(times)}, median {statistics.median(times):.1f} ms,"
        f" p99 {p99:.1f} ms, longest {slowest:.1f} ms"
    )


async def measure(databases: Databases, count: int) -> None:
    database = databases.system
    at = now() - 99 * DAY
    for first in range(0, count, 500):
        await database.write(create(first, 500, at))
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(3.0, stop.set)
    print(describe("small writes alone", await measure_writes(database, 0, stop)))

    units = list[float]()
    choice = IdleSessions(now() - 90 * DAY)
    for _ in range(count // 2 // PRUNED):
        page = await database.read(retention.list_idle(choice, PRUNED, measured=True), size="large")
        ids = [row.session_id for row in page.rows]
        began = time.perf_counter()
        await database.write(retention.remove_sessions(ids, idle_before=choice.before))
        units.append((time.perf_counter() - began) * 1_000)
    print(describe(f"removals of {PRUNED} sessions with {PRUNED * RUNS} runs", units))

    stop = asyncio.Event()
    writes = asyncio.create_task(measure_writes(database, 1_000_000, stop))
    began = time.perf_counter()
    ages = Ages(table=Retention(idle_days=90))
    removed = await delete_idle_sessions(databases, database, ages, now(), 600)
    seconds = time.perf_counter() - began
    stop.set()
    print(f"retention by the server: {removed} sessions in {seconds:.1f} s")
    print(describe("small writes meanwhile", await writes))


async def run(entry: settings.Database, count: int) -> None:
    databases = Databases(settings.Settings(databases=(entry,)), create=True)
    try:
        await measure(databases, count)
    finally:
        await databases.close()


@contextmanager
def choose_database(postgres: bool) -> Iterator[settings.Database]:
    if not postgres:
        with tempfile.TemporaryDirectory(prefix="agentctl-retention-") as folder:
            yield settings.Database("main", f"sqlite:///{folder}/main.db")
        return
    with running_postgres(durable=True) as url, postgres_schemas(url) as places:
        path = places["main"].partition('search_path = "')[2][:-1]
        yield settings.Database("main", url, search_path=path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", action="store_true", help="start a PostgreSQL")
    parser.add_argument("--sessions", type=int, default=20_000)
    given = parser.parse_args()
    with choose_database(given.postgres) as entry:
        asyncio.run(run(entry, given.sessions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
