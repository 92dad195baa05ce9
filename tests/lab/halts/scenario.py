"""Work on every path, while everything is halted: no call begins after the return of a halt.

    python -m tests.lab halts --halts 10000

Servers are killed and stopped meanwhile. The model endpoint and the ledger of the tool show the
calls with their times, and what a halt has held continues once.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from tests.lab.halts.experiment import Plan, halt_often
from tests.lab.halts.report import Report

__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--halts", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=600.0, help="end after so many minutes")
    parser.add_argument("--deployment", choices=["postgresql", "sqlite"], default="postgresql")
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


async def run(options: argparse.Namespace) -> Counter[str]:
    """Halt work many times, print the figures, and return the violations."""
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
    report = Report()
    if options.halts:
        report = await halt_often(options.deployment, plan, on_halt=options.on_halt)
    if options.figures is not None:
        if options.halts:
            report.append_to(options.figures)
        report = Report.read_sum(options.figures)
    print(report.describe())
    return report.problems + Counter(report.late)
