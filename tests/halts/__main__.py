"""Halt work thousands of times over every path, and count the calls that begin afterwards."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.halts.paths import PATHS
from tests.halts.world import Report, open_world


async def _run(options: argparse.Namespace) -> Report:
    async with open_world(options.engine, options.lanes) as world:
        return await world.halt_often(
            options.halts, options.lanes, kills=not options.no_kills, paths=options.paths
        )


def main() -> int:
    """Return 1 if a call has begun after a halt, or work has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.halts", description=__doc__)
    parser.add_argument("--halts", type=int, default=10_000)
    parser.add_argument("--lanes", type=int, default=12)
    parser.add_argument("--engine", choices=["postgresql", "sqlite"], default="postgresql")
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--paths", nargs="+", choices=[*PATHS], default=[*PATHS])
    report = asyncio.run(_run(parser.parse_args()))
    print(report.describe())
    print("\n".join(report.late))
    return 1 if report.late or report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
