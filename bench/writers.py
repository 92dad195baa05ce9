"""64 concurrent writers on one SQLite file: latency of a write, and size of the WAL.

    python -m bench.writers [SECONDS]

First all writers are in one process, whose writer thread commits many units of work at once; then
16 in each of 4 processes, which wait for the lock of each other. A write creates a run, which also
changes the row of its session; it is on disk when it returns (`synchronous=FULL`). A reader in this
process keeps reading. No write may fail, least of all with "database is locked".
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from agentctl.errors import AgentctlError
from agentctl.store.databases import open_sqlite
from agentctl.store.repositories import runs, sessions
from agentctl.store.sqlite.connection import get_file_size, get_wal_path
from agentctl.store.sqlite.database import SqliteDatabase
from agentctl.store.visibility import EVERYONE
from tests.kit.rows import a_run, a_session

WRITERS = 64
PROCESSES = 4
GOAL_MS = 100.0


@dataclass
class WriteResult:
    """Milliseconds of each write, and the messages of failures."""

    latencies: list[float]
    failures: list[str]


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    print("| writers | writes/s | p50 ms | p99 ms | slowest ms | failed | largest WAL |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for processes in (1, PROCESSES):
        with tempfile.TemporaryDirectory(prefix="agentctl-writers-") as folder:
            path = Path(folder) / "agentctl.db"
            open_sqlite("main", path, create=True).close_blocking()
            written, log = asyncio.run(_measure(path, processes, seconds))
            _print_row(processes, written, log, seconds)


def _print_row(processes: int, written: WriteResult, log: int, seconds: float) -> None:
    each = f"{WRITERS} in one process"
    if processes > 1:
        each = f"{WRITERS // processes} in each of {processes} processes"
    times = sorted(written.latencies)
    p99 = statistics.quantiles(times, n=100)[98]
    print(
        f"| {each} | {len(times) / seconds:,.0f} | {statistics.median(times):.1f} | {p99:.1f}"
        f" | {times[-1]:.1f} | {len(written.failures)} | {log / 1e6:.1f} MB |"
    )
    for failure in sorted(set(written.failures)):
        print(f"  failed: {failure}")


async def _measure(path: Path, processes: int, seconds: float) -> tuple[WriteResult, int]:
    """Run the writers and read meanwhile; return their results and the largest size of the WAL."""
    work = asyncio.create_task(_run_writers(path, processes, seconds))
    reader = open_sqlite("main", path, create=False)
    largest = 0
    while not work.done():
        largest = max(largest, get_file_size(get_wal_path(path)))
        await reader.read(sessions.get("s0", EVERYONE), size="large")
        await asyncio.sleep(0.05)
    await reader.close()
    return await work, largest


async def _run_writers(path: Path, processes: int, seconds: float) -> WriteResult:
    if processes == 1:
        return await _write_concurrently(path, 0, WRITERS, seconds)
    each = WRITERS // processes
    begun = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.writers",
            "--of",
            str(path),
            str(n * each),
            str(each),
            str(seconds),
            stdout=subprocess.PIPE,
        )
        for n in range(processes)
    ]
    together = WriteResult([], [])
    for output, _ in await asyncio.gather(*(process.communicate() for process in begun)):
        part = WriteResult(**json.loads(output))
        together.latencies += part.latencies
        together.failures += part.failures
    return together


async def _write_concurrently(path: Path, first: int, count: int, seconds: float) -> WriteResult:
    database = open_sqlite("main", path, create=False)
    written = WriteResult([], [])
    end = time.monotonic() + seconds
    numbers = range(first, first + count)
    await asyncio.gather(*(_write_repeatedly(database, f"s{n}", end, written) for n in numbers))
    await database.close()
    return written


async def _write_repeatedly(
    database: SqliteDatabase, session_id: str, end: float, written: WriteResult
) -> None:
    await database.write(sessions.create(a_session(session_id)))
    number = 0
    while time.monotonic() < end:
        number += 1
        began = time.perf_counter()
        try:
            await database.write(runs.create(a_run(f"{session_id}-{number}", session_id)))
        except AgentctlError as failure:
            written.failures.append(failure.detail)
        written.latencies.append((time.perf_counter() - began) * 1_000)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--of"]:
        path, first, count, seconds = sys.argv[2:]
        part = asyncio.run(_write_concurrently(Path(path), int(first), int(count), float(seconds)))
        print(json.dumps(asdict(part)))
    else:
        main()
