"""`make bench-quick`: the hot paths compared with the floors, in under a minute.

All sides are compared by CPU time, which hardly changes on a machine with other work. The exit code
is 1 if a ratio is clearly worse than its limit. Such a row is measured again, and the median of all
rounds counts.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench import commands, reads, verification
from bench.client import encode_form
from bench.load import require_wrk
from bench.measure import (
    Measurement,
    Row,
    Target,
    at_least,
    at_most,
    build_figure_row,
    build_ratio_row,
    format_text,
    run_rounds,
)
from bench.seeding import seed_database
from bench.servers import RunningServer, serve_agentctl, serve_endpoint, serve_floors
from bench.work import SHORT_RUNS, create_work, listed_sessions, single_run_sessions, sized_sessions

ROUNDS = 3

SESSIONS = 10_000
"""Sessions of one run in the database: a list must not cost more with many of them."""

MEMORY = "memory that these reads and runs add"

LIMITS: dict[str, Target] = {
    "session detail, 1 run": at_least(0.24),
    "session detail, 1,000 runs": at_least(0.4),
    "teams": at_least(0.4),
    "list of 20 sessions": at_least(0.16),
    "list of 20 of 10,000 sessions of agents": at_least(0.085),
    "cancel of a run that ended": at_least(0.15),
    "runs, plain": at_least(0.011),
    MEMORY: at_most(100),
    "agentctl --help": at_most(1.5),
    "agentctl teams list": at_most(2.1),
    "verification of a token": at_most(1.6),
    "verification of a token, again": at_most(0.15),
}
"""Limits of the ratios: two thirds of the usual ratio for rates, one and a half times for times.
16 readers of the largest session may add 100 MB to an idle server.

Raise the limit of a path that becomes clearly faster.
"""

Sides = Mapping[str, Measurement]
"""The measurements of agentctl (`ours`) and of the floor, by name; paths may share a floor."""


def build_paths(
    one: RunningServer, floor: RunningServer, folder: Path
) -> dict[str, tuple[str, Sides]]:
    """Return every path with the unit of its figures and its two sides."""
    constant = {"FastAPI, constant": floor.get("/fastapi").by_processor}
    large = {"bare ASGI, read by apsw": floor.get("/point/runs-1000").by_processor}
    run = one.post(f"/agents/{reads.AGENT}/runs", encode_form(stream=False), seconds=2)
    loads = {
        "session detail, 1 run": (one.get("/sessions/runs-1"), constant),
        "session detail, 1,000 runs": (one.get("/sessions/runs-1000"), large),
        "teams": (one.get("/teams"), constant),
        "list of 20 sessions": (one.get("/sessions?limit=20"), constant),
        "list of 20 of 10,000 sessions of agents": (
            one.get("/sessions?type=agent&limit=20"),
            constant,
        ),
        "cancel of a run that ended": (reads.repeat_cancel(one), constant),
        "runs, plain": (run, constant),
    }
    served = {
        work: ("/CPU s", {"ours": load.by_processor, **least})
        for work, (load, least) in loads.items()
    }
    return served | {
        "agentctl --help": (" CPU ms", _measure_command(folder, ("--help",), ("--help",))),
        "agentctl teams list": (" CPU ms", _measure_command(folder, ("teams", "list"), ())),
        "verification of a token": (" CPU µs", verification.build_measurements("first time")),
        "verification of a token, again": (" CPU µs", verification.build_measurements("again")),
    }


def _measure_command(folder: Path, command: tuple[str, ...], bare: tuple[str, ...]) -> Sides:
    return commands.build_measurements(folder, command, bare, commands.measure_cpu_seconds)


def measure_rows(all_paths: Mapping[str, tuple[str, Sides]]) -> Iterator[Row]:
    """Run a few rounds of all paths, and as many again of each path that misses its limit."""
    acts = {act: act for _, path in all_paths.values() for act in path.values()}
    found = run_rounds(acts, ROUNDS)
    for work, (unit, path) in all_paths.items():
        row = _build_row(work, unit, path, found)
        if not row.reached:
            again = _build_row(
                work, unit, path, run_rounds({act: act for act in path.values()}, ROUNDS)
            )
            row = replace(again, ratios=row.ratios + again.ratios)
        yield row


def _build_row(
    work: str, unit: str, path: Sides, found: Mapping[Measurement, Sequence[float]]
) -> Row:
    (floor,) = set(path) - {"ours"}
    return build_ratio_row(work, found[path["ours"]], floor, found[path[floor]], unit, LIMITS[work])


def main() -> int:
    """Measure and print the table; return the exit code."""
    require_wrk()
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(serve_endpoint())
        work = create_work(
            folder / "work",
            f"{url}/v1",
            [
                *sized_sessions((1, 1_000)),
                *listed_sessions(40, SHORT_RUNS),
                *single_run_sessions(SESSIONS),
            ],
        )
        seed_database(work)
        one = stack.enter_context(serve_agentctl(work))
        floor = stack.enter_context(serve_floors(work))
        commands.prepare_folder(folder)
        idle = one.memory
        rows = list(measure_rows(build_paths(one, floor, folder)))
        rows.append(build_figure_row(MEMORY, [one.memory - idle], " MB", LIMITS[MEMORY]))
    print(format_text(rows))
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
