"""Servers as processes: start time, memory, and one worker compared with two."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from bench.client import Client, encode_form
from bench.load import compare_loads
from bench.measure import Row, at_most, build_ratio_row, run_rounds
from bench.reads import AGENT
from bench.servers import RunningServer, serve_agentctl
from bench.work import Work

__all__ = ["Memory", "compare_starts", "compare_workers"]


class Memory:
    """The memory of both servers: measured before the first request, and again for the rows."""

    def __init__(
        self, ours: RunningServer, theirs: RunningServer, name: str, agent: str = ""
    ) -> None:
        self._sides = ours, theirs, ours.twin
        self._name = name
        self._agent = agent
        self._idle = self._now()

    def _now(self) -> tuple[float, ...]:
        return tuple(side.memory for side in self._sides if side is not None)

    def rows(self) -> Iterator[Row]:
        """Measure the memory after the load and yield the rows."""
        for name, (one, other, *twin) in (("idle", self._idle), ("after that load", self._now())):
            goal = at_most(0.5) if name != "idle" else None
            work = f"{self._agent}memory, {name}"
            row = build_ratio_row(work, [one], self._name, [other], " MB", goal)
            row = replace(row, timed=False)
            yield row.with_postgres(twin, [one], " MB") if twin else row


Serve = Callable[[], AbstractContextManager[RunningServer]]


def compare_starts(
    work: Work, name: str, serve: Serve, twin: Work | None = None, agent: str = ""
) -> Iterator[Row]:
    """Compare the times from the start of the process to the first response.

    Args:
        name, serve: the other server, and a function that starts it.
        twin: the same work on PostgreSQL.
        agent: the beginning of the name of the row.
    """
    acts = {"ours": _measure_start(partial(serve_agentctl, work)), "theirs": _measure_start(serve)}
    if twin is not None:
        acts["twin"] = _measure_start(partial(serve_agentctl, twin))
    found = run_rounds(acts, 4)
    start = f"{agent}start to the first answer"
    row = build_ratio_row(start, found["ours"], name, found["theirs"], " s", at_most(0.6))
    yield row if twin is None else row.with_postgres(found["twin"], found["ours"], " s")


def _measure_start(serve: Serve) -> Callable[[], float]:
    def act() -> float:
        start = time.perf_counter()
        with serve() as server, Client(server.port, {}) as client:
            client.get(server.health)
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
