"""`python -m tests.chaos`: a run of chaos of any length, and its report."""

from __future__ import annotations

import argparse
import asyncio
import signal

from tests.chaos.play import run_chaos
from tests.chaos.report import format_report


def main() -> int:
    """Play and print; 1 when something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--pause", type=float, default=12.0, help="seconds between two outages")
    given = parser.parse_args()
    # Told to end, it ends what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    result = asyncio.run(run_chaos(given.minutes * 60, given.clients, pause=given.pause))
    print(format_report(result))
    return 1 if result.ledger.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
