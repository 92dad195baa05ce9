"""Fill an empty database with generated sessions and runs, for measurements.

`python -m bench.seed --url URL --sessions 1000000 --runs-per-session 5`, with a URL as
in the configuration: `sqlite:////absolute/path` or `postgresql://…`. `tests.generated.fill` has
the rules: it creates missing tables and rejects a database with sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from tests.generated.fill import fill_database
from tests.generated.population import Population


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--url", required=True, help="sqlite:////absolute/path or postgresql://…")
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--runs-per-session", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="another seed, other rows")
    parser.add_argument("--related", action="store_true", help="also fill the other tables")
    options = parser.parse_args()
    started = time.monotonic()
    population = Population(options.sessions, options.runs_per_session, options.seed)
    asyncio.run(fill_database(options.url, population, related=options.related))
    print(
        f"{options.sessions:,} sessions with {options.sessions * options.runs_per_session:,} runs"
        f" in {time.monotonic() - started:.0f} s",
        file=sys.stderr,
    )


if __name__ == "__main__":
    _main()
