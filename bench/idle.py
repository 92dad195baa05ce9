"""Idle servers: CPU time and memory of a server that no caller uses.

CPU time is read in nanoseconds from the scheduler, because an idle server uses less than one tick
of the clock in a second. A wake-up costs more on a quiet machine than on a busy one, so a server is
compared with a bare one that idles at the same time: uvicorn wakes up ten times a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.load import list_processes, resident_megabytes
from bench.measure import Row, at_most, build_figure_row, build_ratio_row
from bench.servers import RunningServer, serve_agentctl, serve_floors
from bench.work import create_work
from tests.kit.postgres import running_postgres

__all__ = ["measure_idle_servers"]

SETTLE_SECONDS = 3.0
"""Time after the start that is not measured."""

ROUND_SECONDS = 4.0
ROUNDS = 3


def measure_idle_servers(folder: Path) -> Iterator[Row]:
    """Measure servers on SQLite with one and with two workers, and one on PostgreSQL."""
    model_url = "http://127.0.0.1:9/v1"
    file = create_work(folder / "idle", model_url, [])
    with ExitStack() as stack:
        server = stack.enter_context(serve_agentctl(file))
        floor = stack.enter_context(serve_floors(file))
        yield _compare("CPU of an idle server", server, floor)
        memory = [resident_megabytes(server.process_id)]
        yield build_figure_row("memory of an idle server", memory, " MB", at_most(85))
    with ExitStack() as stack:
        floor = stack.enter_context(serve_floors(file))
        server = stack.enter_context(serve_agentctl(file, "--workers", "2"))
        yield _compare("CPU of an idle server, each of 2 workers", server, floor, workers=2)
        url = stack.enter_context(running_postgres(durable=True))
        other = create_work(folder / "idle-postgres", model_url, [], database=url)
        server = stack.enter_context(serve_agentctl(other))
        yield _compare("CPU of an idle server on PostgreSQL", server, floor)


def _compare(work: str, server: RunningServer, floor: RunningServer, *, workers: int = 1) -> Row:
    time.sleep(SETTLE_SECONDS)
    processes = server.process_id, floor.process_id
    shares: dict[int, list[float]] = {process: [] for process in processes}
    for _ in range(ROUNDS):
        start = time.monotonic()
        before = {process: scheduled_seconds(process) for process in processes}
        time.sleep(ROUND_SECONDS)
        took = time.monotonic() - start
        for process, found in shares.items():
            found.append((scheduled_seconds(process) - before[process]) / took * 100)
    ours, bare = (
        [share / count for share in shares[process]]
        for process, count in zip(processes, (workers, 1), strict=True)
    )
    return build_ratio_row(work, ours, "bare uvicorn, idle", bare, "%", at_most(2))


def scheduled_seconds(process_id: int) -> float:
    """Return the CPU seconds of all threads of a process and its children."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) / 1e9
        for process in list_processes(process_id)
        for task in Path(f"/proc/{process}/task").iterdir()
    )
