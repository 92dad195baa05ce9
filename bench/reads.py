"""Reads over HTTP: session details, teams, a list; and cancels of final runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace

from bench.client import Client
from bench.load import Batch, Load, compare_loads
from bench.measure import Row, Target, at_least, at_most, build_ratio_row, run_rounds
from bench.servers import RunningServer

__all__ = [
    "AGENT",
    "compare_with_agentos",
    "compare_with_floors",
    "measure_long_session",
    "repeat_cancel",
]

AGENT = "offers"

DETAILS = {1: (5, 0), 100: (3, 32), 1_000: (2, 8)}
"""By the number of runs of the session: rounds, and requests per round of the other server (0: as
many as fit in a second).
"""

LEAST = at_least(2, by_processor=True)


def compare_with_agentos(
    ours: RunningServer, theirs: RunningServer, name: str, goals: Mapping[str, Target]
) -> Iterator[Row]:
    """Compare the same reads and cancels on both servers.

    Args:
        name: name of the other server.
        goals: targets by the name of the work; `LEAST` for others.
    """
    gets = [
        (f"session detail, {size:,} run{'s' * (size > 1)}", f"/sessions/runs-{size}", *counts)
        for size, counts in DETAILS.items()
    ]
    _require_same_work(ours, theirs, f"/sessions/runs-{max(DETAILS)}")
    gets.append(("teams, 5 configured", "/teams", 3, 48))
    for runs, page in ((50, 1), (5, 20)):
        listed = f"list 20 of 400 sessions, of {runs} runs"
        gets.append((listed, f"/sessions?limit=20&page={page}", 3, 32))
    for work, path, rounds, requests in gets:
        load = theirs.get(path)
        other = Batch(load, requests) if requests else load
        yield compare_loads(work, ours.get(path), name, other, rounds, goals.get(work, LEAST))
    cancels = repeat_cancel(ours), name, repeat_cancel(theirs)
    yield compare_loads("cancel", *cancels, 3, goals.get("cancel", LEAST))


def _require_same_work(ours: RunningServer, theirs: RunningServer, path: str) -> None:
    """Require that a response of the other server has about as many bytes, and so all runs."""
    sizes = []
    for place in (ours, theirs):
        with Client(place.port, place.headers) as client:
            sizes.append(len(client.get(path)))
    assert sizes[1] > sizes[0] / 2, sizes


def repeat_cancel(place: RunningServer) -> Load:
    """Return the load of cancelling a final run: AgentOS does the same work for any run."""
    with Client(place.port, place.headers) as client:
        run = client.run(AGENT)
    path = f"/agents/{AGENT}/runs/{run['run_id']}/cancel?session_id={run['session_id']}"
    load = replace(place, twin=None).post(path)
    if place.twin is not None:
        load.twin = repeat_cancel(place.twin)
    return load


def compare_with_floors(ours: RunningServer, floors: RunningServer) -> Iterator[Row]:
    """Compare the hot reads with the least cost of their frameworks and driver."""
    detail = "session detail, 1 run"
    teams = "teams, 5 configured"
    constant = "FastAPI, constant"
    for work, path, name, floor, goal in (
        (detail, "/sessions/runs-1", constant, "/fastapi", at_least(0.45)),
        (detail, "/sessions/runs-1", "bare ASGI, constant", "/bare", None),
        (detail, "/sessions/runs-1", "bare ASGI, read by apsw", "/point", None),
        (teams, "/teams", constant, "/fastapi", None),
    ):
        yield compare_loads(work, ours.get(path), name, floors.get(floor), 5, goal)


def measure_long_session(ours: RunningServer) -> Iterator[Row]:
    """Compare a session of 10,000 runs with a shorter one, and their rows in a list."""
    with Client(ours.port, ours.headers) as client:
        sizes = {runs: len(client.get(f"/sessions/runs-{runs}")) for runs in (1_000, 10_000)}
    # Sixteen responses of 9 MB at a time are more than a server sends to one user.
    loads = {str(n): ours.get(f"/sessions/runs-{n}", seconds=4, connections=8) for n in sizes}
    rates = run_rounds(loads, 3)
    speeds = {n: [rate * size / 1e6 for rate in rates[str(n)]] for n, size in sizes.items()}
    work = f"session detail, 10,000 runs ({sizes[10_000] / 1e6:.1f} MB)"
    yield build_ratio_row(work, speeds[10_000], "1,000 runs", speeds[1_000], " MB/s", at_least(0.8))
    row = run_rounds(
        {
            "long": ours.get("/sessions?limit=1&session_name=runs-10000"),
            "short": ours.get("/sessions?limit=1&session_name=listed-399"),
        },
        3,
    )
    seconds = {name: [1_000 / rate for rate in found] for name, found in row.items()}
    work = "row in a list, session of 10,000 runs"
    yield build_ratio_row(work, seconds["long"], "of 5 runs", seconds["short"], " ms", at_most(1.2))
    assert statistics.median(speeds[10_000]) > 0
