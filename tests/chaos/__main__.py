"""`python -m tests.chaos`: run an experiment of any length and print its report."""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import get_args

from tests.chaos.cluster import Engine
from tests.chaos.experiment import run_chaos
from tests.chaos.report import format_report


def main() -> int:
    """Run the experiment and print the report; return 1 if the check found violations."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--engine", choices=get_args(Engine), default="postgresql")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--pause", type=float, default=12.0, help="seconds between two outages")
    options = parser.parse_args()
    # SIGTERM raises KeyboardInterrupt, so that servers and the database are stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    result = asyncio.run(
        run_chaos(options.engine, options.minutes * 60, options.clients, pause=options.pause)
    )
    print(format_report(result))
    return 1 if result.ledger.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
