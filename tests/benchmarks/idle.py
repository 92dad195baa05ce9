"""Idle servers: CPU time and memory of a server that no caller uses.

CPU time is read in nanoseconds from the scheduler, because an idle server uses less than one tick
of the clock in a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.load import list_processes, resident_megabytes
from tests.benchmarks.measure import Row, at_most, build_figure_row
from tests.benchmarks.servers import RunningServer, serve_agentctl
from tests.benchmarks.work import create_work
from tests.postgres import running_postgres

__all__ = ["measure_idle_servers"]

SETTLE_SECONDS = 3.0
"""Time after the start that is not measured."""

ROUND_SECONDS, ROUNDS = 4.0, 3


def measure_idle_servers(folder: Path) -> Iterator[Row]:
    """Measure servers on SQLite with one and with two workers, and one on PostgreSQL."""
    model_url = "http://127.0.0.1:9/v1"
    file = create_work(folder / "idle", model_url, [])
    with serve_agentctl(file) as server:
        yield _measure_share("CPU of an idle server", server)
        memory = [resident_megabytes(server.process_id)]
        yield build_figure_row("memory of an idle server", memory, " MB", at_most(85))
    with serve_agentctl(file, "--workers", "2") as server:
        yield _measure_share("CPU of an idle server, each of 2 workers", server, workers=2)
    with running_postgres(durable=True) as url:
        other = create_work(folder / "idle-postgres", model_url, [], database=url)
        with serve_agentctl(other) as server:
            yield _measure_share("CPU of an idle server on PostgreSQL", server)


def _measure_share(work: str, server: RunningServer, *, workers: int = 1) -> Row:
    time.sleep(SETTLE_SECONDS)
    shares = []
    for _ in range(ROUNDS):
        before, start = scheduled_seconds(server.process_id), time.monotonic()
        time.sleep(ROUND_SECONDS)
        used = scheduled_seconds(server.process_id) - before
        shares.append(used / (time.monotonic() - start) / workers * 100)
    return build_figure_row(work, shares, "%", at_most(0.2))


def scheduled_seconds(process_id: int) -> float:
    """Return the CPU seconds of all threads of a process and its children."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) / 1e9
        for process in list_processes(process_id)
        for task in Path(f"/proc/{process}/task").iterdir()
    )
