"""The cost of many idle servers with live runs for one PostgreSQL.

`python -m bench.cluster` simulates 1,000 workers with 50,000 live runs on the tables of
agentctl: each sends its heartbeat every 0.75 seconds, and one of them sweeps. It prints the CPU
time of PostgreSQL for that as a share of one core, and the time in which the runs of a worker that
stops are ended.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path
from typing import Any

import asyncpg

from agentctl.config import settings
from agentctl.records.times import now
from agentctl.runs.jobs.lanes import Job, Jobs, Lane
from agentctl.runs.jobs.sweep import SWEEP_SECONDS, sweep_dead_workers
from agentctl.runs.workers.liveness import WorkerMonitor
from agentctl.runs.workers.worker import LIVE_SECONDS, SweepLease, Worker
from agentctl.store.database import compile_for_postgres
from agentctl.store.databases import Databases
from agentctl.store.repositories import runs, sessions, workers
from tests.kit.postgres_server import PostgresServer, run_postgres_server
from tests.kit.rows import a_run, a_session

CONNECTIONS = 16

FILL = """
INSERT INTO runs SELECT (jsonb_populate_record(runs, jsonb_build_object('run_id', 'r' || number,
    'seq', number + 1, 'owner', 'w' || number % $1::bigint))).*
FROM runs, generate_series(1, $2::bigint) AS number WHERE run_id = 'first'
"""

REGISTER = """
INSERT INTO workers (worker_id, host, boot_id, pid, process_start, beat, started_at)
SELECT 'w' || number, 'far', 'boot', 1, 1, 0, 0 FROM generate_series(0, $1::bigint - 1) AS number
"""


def read_cpu_seconds(folder: Path) -> float:
    """Return the CPU time of a PostgreSQL server and of its ended processes."""
    postmaster = int((folder / "postmaster.pid").read_text().split()[0])
    ticks = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == postmaster:
            ticks += int(fields[11]) + int(fields[12])
        elif place.parent.name == str(postmaster):
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def beat(pool: Any, names: list[str], stopped: set[str], counts: list[int]) -> None:
    """Send the heartbeats of some workers for ever, one after the other."""
    text, order = compile_for_postgres(workers._HEARTBEAT)
    while True:
        started = time.monotonic()
        for name in names:
            if name not in stopped:
                values = {"worker_id": name, "now": now()}
                await pool.fetch(text, *[values[each] for each in order])
                counts[0] += 1
        await asyncio.sleep(max(LIVE_SECONDS - (time.monotonic() - started), 0))


async def measure(server: PostgresServer, count: int, live: int, seconds: float) -> None:
    """Print the results for `count` workers with `live` runs together."""
    entry = settings.Database("main", server.url)
    databases = Databases(settings.Settings(databases=(entry,)), create=True)
    await databases.open_all()
    system = databases.system
    await system.write(sessions.create(a_session()))
    await system.write(runs.create(a_run("first", owner="w0")))
    await system.write(runs.claim("first", 1, "w0", now()))
    pool = await asyncpg.create_pool(server.url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    await pool.execute(REGISTER, count)
    await pool.execute(FILL, count, live)
    await pool.execute("VACUUM ANALYZE")
    stopped = set[str]()
    counts = [0]
    tasks = [
        asyncio.create_task(
            beat(pool, [f"w{at}" for at in range(part, count, CONNECTIONS)], stopped, counts)
        )
        for part in range(CONNECTIONS)
    ]
    worker = Worker(databases)
    monitor = WorkerMonitor(databases)
    monitor.is_long_lived = True
    await worker.register()
    jobs = Jobs(SweepLease(databases, monitor, worker))
    sweep = Job("dead_workers", lambda: sweep_dead_workers(databases, monitor, worker.id), True)
    lane = Lane(
        SWEEP_SECONDS, [Job("lease", jobs.lease.acquire), sweep], within=jobs.lease.extended
    )
    jobs.start([lane])
    await asyncio.sleep(5)
    folder = server.log.parent
    cpu = read_cpu_seconds(folder)
    began = time.monotonic()
    sent = counts[0]
    await asyncio.sleep(seconds)
    share = (read_cpu_seconds(folder) - cpu) / (time.monotonic() - began)
    rate = (counts[0] - sent) / (time.monotonic() - began)
    print(f"{count} workers, {live} live runs: {rate:.0f} heartbeats/s, {share:.2f} cores")
    stopped.add("w1")
    began = time.monotonic()
    left = "SELECT count(*) FROM runs WHERE owner = 'w1' AND status IN ('PENDING', 'RUNNING')"
    lost = await pool.fetchval(left)
    while await pool.fetchval(left):
        await asyncio.sleep(0.1)
    ended = await pool.fetch(
        "SELECT error_code, attempt, count(*) FROM runs WHERE owner = 'w1' OR run_id IN"
        " (SELECT run_id FROM runs WHERE attempt = 2) GROUP BY 1, 2"
    )
    print(
        f"{lost} runs of a dead worker were ended after {time.monotonic() - began:.1f} s:"
        f" {[tuple(row) for row in ended]}"
    )
    await jobs.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await worker.unregister()
    await pool.close()
    await databases.close()


def main() -> None:
    """Parse the arguments and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    with run_postgres_server() as server:
        asyncio.run(measure(server, given.workers, given.runs, given.seconds))


if __name__ == "__main__":
    main()
