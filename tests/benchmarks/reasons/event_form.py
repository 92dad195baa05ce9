"""What stored events cost as JSON, and what they would cost as the pieces of text alone.

    python -m tests.benchmarks.reasons.event_form [URL of a PostgreSQL server]

Forty runs store five tokens each at every tick, in one statement, as the recorder does. As text a
row has one time, and its pieces as a JSON array. The medians of rounds in turns are printed.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg

from agentctl.config import settings
from agentctl.records.ids import new_id
from agentctl.runs.event_format import RunIdentity
from agentctl.store.database import Database, Steps, unit
from agentctl.store.databases import open_sqlite
from agentctl.store.postgres.database import PostgresDatabase
from agentctl.store.repositories import events, runs, sessions
from tests.benchmarks.load import cpu_seconds
from tests.postgres import running_postgres
from tests.store.rows import a_run, a_session

RUNS, TOKENS, TICKS, ROUNDS = 40, 5, 100, 5

TOKEN = " token"


def build_json(run_id: str, session_id: str) -> str:
    """Return the stored form of the tokens of a tick."""
    run = RunIdentity(run_id, session_id, None, "agent", "offers", "Offers")
    lines = [run.format_content(TOKEN, time.time_ns() // 1_000) for _ in range(TOKENS)]
    return "".join(f"{name} {data.decode()}\n" for name, data in lines)


def build_text(run_id: str, session_id: str) -> str:
    """Return the tokens of a tick without what the row of the run has already."""
    return f"{time.time_ns() // 1_000} {json.dumps([TOKEN] * TOKENS, separators=(',', ':'))}\n"


@unit
def create_runs(run_ids: list[str]) -> Steps[None]:
    """Create the runs in one session."""
    yield from sessions.create(a_session(run_ids[0], component_data="{}"))
    for run_id in run_ids:
        yield from runs.create(a_run(run_id, run_ids[0], background=False))


async def measure(database: Database, build: Any, cost: Any) -> list[float]:
    """Return what a token costs by `cost`, which returns totals."""
    run_ids = [new_id() for _ in range(RUNS)]
    await database.write(create_runs(run_ids))
    before = await cost()
    for tick in range(TICKS):
        batches = [
            events.Batch(run_id, 1, tick * TOKENS, tick * TOKENS + 4, build(run_id, run_ids[0]))
            for run_id in run_ids
        ]
        await database.write(events.append_batches(batches))
    after = await cost()
    return [(b - a) / (RUNS * TOKENS * TICKS) for a, b in zip(before, after, strict=True)]


async def compare(name: str, database: Database, cost: Any, units: list[str]) -> None:
    """Print the medians of both forms, and their ratio."""
    found: dict[str, list[list[float]]] = {"json": [], "text": []}
    for number in range(ROUNDS):
        forms = [("json", build_json), ("text", build_text)]
        for form, build in forms if number % 2 else reversed(forms):
            found[form].append(await measure(database, build, cost))
    medians = {
        form: [statistics.median(costs) for costs in zip(*rows, strict=True)]
        for form, rows in found.items()
    }
    for index, what in enumerate(units):
        one, other = medians["json"][index], medians["text"][index]
        print(
            f"{name}, {what} of a token: JSON {one:.1f}, text {other:.1f}, ratio {one / other:.1f}"
        )


async def measure_postgres(url: str) -> None:
    """Compare on PostgreSQL."""
    entry = settings.Database("main", url, search_path=f"form_{new_id().replace('-', '')}")
    database = PostgresDatabase(entry, create=True)
    await database.check()
    watch = await asyncpg.connect(url, server_settings={"search_path": entry.search_path})
    folder = await watch.fetchval("SHOW data_directory")
    server = int((Path(folder) / "postmaster.pid").read_text().split()[0])

    async def cost() -> list[float]:
        wal = await watch.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        size = await watch.fetchval("SELECT pg_total_relation_size('run_events')")
        own = time.process_time() * 1e6
        return [float(wal), float(size), own, cpu_seconds(server) * 1e6]

    units = ["WAL in bytes", "storage in bytes", "CPU of agentctl in us", "CPU of PostgreSQL in us"]
    await compare("PostgreSQL", database, cost, units)
    await database.close()
    await watch.execute(f"DROP SCHEMA {entry.search_path} CASCADE")
    await watch.close()


async def measure_sqlite(path: Path) -> None:
    """Compare on SQLite."""
    database = open_sqlite("main", path, create=True)

    async def cost() -> list[float]:
        return [float(path.stat().st_size), time.process_time() * 1e6]

    await compare("SQLite", database, cost, ["storage in bytes", "CPU in us"])
    await database.close()


def main() -> None:
    """Compare on both engines."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure_sqlite(Path(folder) / "agentctl.db"))
    if len(sys.argv) > 1:
        asyncio.run(measure_postgres(sys.argv[1]))
        return
    with running_postgres(durable=True) as url:
        asyncio.run(measure_postgres(url))


if __name__ == "__main__":
    main()
