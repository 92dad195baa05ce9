"""Halt work thousands of times over every path, and count the calls that begin afterwards."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from tests.halts.report import Report
from tests.halts.world import Plan, open_world


async def _run(options: argparse.Namespace) -> Report:
    plan = Plan(
        options.halts,
        seconds=options.minutes * 60,
        kill_every=options.kill_every,
        stop_every=options.stop_every,
        long_stop_every=options.long_stop_every,
        callers=options.callers,
        seed=options.seed,
        progress=60.0,
    )
    async with open_world(options.engine, on_halt=options.on_halt) as world:
        return await world.run(plan)


def main() -> int:
    """Return 1 if a call has begun after a halt, or a run has done too much or too little."""
    parser = argparse.ArgumentParser(prog="python -m tests.halts", description=__doc__)
    parser.add_argument("--halts", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=600.0, help="end after so many minutes")
    parser.add_argument("--engine", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--on-halt", choices=["refuse", "hold"], default="refuse")
    parser.add_argument("--kill-every", type=int, default=100, help="one kill for so many halts")
    parser.add_argument("--stop-every", type=int, default=100, help="one short stop")
    parser.add_argument("--long-stop-every", type=int, default=150, help="one stop of 6 seconds")
    parser.add_argument("--callers", type=int, default=1, help="callers of each path")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--figures",
        type=Path,
        help="add the figures to this file, and print the sum of all in it; with --halts 0 the"
        " sum only",
    )
    options = parser.parse_args()
    report = Report()
    if options.halts:
        report = asyncio.run(_run(options))
    if options.figures is not None:
        if options.halts:
            report.append_to(options.figures)
        report = Report.read_sum(options.figures)
    print(report.describe())
    return 1 if report.late or report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
