"""The search for texts of one user at another one; see `tests.markers`."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import get_args

from tests.markers.search import Plan, search
from tests.markers.server import Engine

SHOWN = 20


def main() -> int:
    """Search on each engine, print the reports, and return 1 if a marker was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.markers", description=__doc__)
    parser.add_argument("--engine", choices=(*get_args(Engine), "both"), default="both")
    parser.add_argument("--runs", type=int, help="runs of all engines together; default 10000")
    parser.add_argument("--seconds", type=float, help="end after this time instead")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices")
    parser.add_argument("--kill-every", type=int, default=200, help="runs between two kills")
    parser.add_argument("--parallel", type=int, default=16, help="runs at the same time")
    options = parser.parse_args()
    # SIGTERM raises KeyboardInterrupt, so that servers and the database are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    engines = get_args(Engine) if options.engine == "both" else (options.engine,)
    runs = options.runs or (10_000 if options.seconds is None else sys.maxsize)
    seconds = 1e9 if options.seconds is None else options.seconds
    found = 0
    for engine in engines:
        plan = Plan(
            engine,
            runs // len(engines),
            seconds / len(engines),
            options.seed,
            options.kill_every,
            options.parallel,
        )
        outcome = search(plan)
        print(f"\n{engine}, seed {options.seed}: {outcome.format()}", flush=True)
        for violation in outcome.violations[:SHOWN]:
            print(violation, flush=True)
        found += len(outcome.violations)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
