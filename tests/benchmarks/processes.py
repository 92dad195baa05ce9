"""Servers as processes: start time, memory, and one worker compared with two."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from tests.benchmarks.client import Client, encode_form
from tests.benchmarks.load import compare_loads
from tests.benchmarks.measure import Row, at_most, build_ratio_row, run_rounds
from tests.benchmarks.reads import AGENT
from tests.benchmarks.servers import RunningServer, serve_agentctl, serve_agentos
from tests.benchmarks.work import Work

__all__ = ["Memory", "compare_starts", "compare_workers"]


class Memory:
    """The memory of both servers: measured before the first request, and again for the rows."""

    def __init__(self, ours: RunningServer, theirs: RunningServer) -> None:
        self._sides = ours, theirs, ours.twin
        self._idle = self._now()

    def _now(self) -> tuple[float, ...]:
        return tuple(side.memory for side in self._sides if side is not None)

    def rows(self) -> Iterator[Row]:
        """Measure the memory after the load and yield the rows."""
        for name, (one, other, *twin) in (("idle", self._idle), ("after that load", self._now())):
            goal = at_most(0.5) if name != "idle" else None
            row = build_ratio_row(f"memory, {name}", [one], "AgentOS", [other], " MB", goal)
            yield row.with_postgres(twin, [one], " MB") if twin else row


def compare_starts(work: Work, twin: Work) -> Iterator[Row]:
    """Compare the times from the start of the process to the first response.

    Args:
        twin: the same work on PostgreSQL.
    """
    found = run_rounds(
        {
            "ours": _measure_start(work, serve_agentctl),
            "theirs": _measure_start(work, serve_agentos),
            "twin": _measure_start(twin, serve_agentctl),
        },
        4,
    )
    goal = at_most(0.6)
    name = "start to the first answer"
    row = build_ratio_row(name, found["ours"], "AgentOS", found["theirs"], " s", goal)
    yield row.with_postgres(found["twin"], found["ours"], " s")


def _measure_start(
    work: Work, place: Callable[[Work], AbstractContextManager[RunningServer]]
) -> Callable[[], float]:
    def act() -> float:
        start = time.perf_counter()
        with place(work) as server, Client(server.port, {}) as client:
            client.get("/health")
            return time.perf_counter() - start

    return act


def compare_workers(work: Work) -> Iterator[Row]:
    """Compare two workers with one, on the same machine, which the load generator shares."""
    with serve_agentctl(work) as one, serve_agentctl(work, "--workers", "2") as two:
        for name, path, body in (
            ("session detail, 1 run", "/sessions/runs-1", None),
            ("runs, plain", f"/agents/{AGENT}/runs", encode_form(stream=False)),
        ):
            loads = [
                place.get(path) if body is None else place.post(path, body, seconds=2)
                for place in (two, one)
            ]
            yield compare_loads(f"{name}, 2 workers", loads[0], "1 worker", loads[1], 3)
