"""Blocks that the pages of lists and the other reads need, on a generated database.

`python -m bench.blocks --url URL` measures a database that `bench.seed
--related` has filled, and prints a table and the pages that read most. `--started` starts a
PostgreSQL server, fills it and measures it. `tests.store.blocks` defines a block.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import NamedTuple

import asyncpg

from tests.generated.fill import fill_database
from tests.generated.population import Population
from tests.kit.postgres import running_postgres
from tests.store.blocks import MAXIMUM_BLOCKS, Counter, PostgresCounter, SqliteCounter, build_cases
from tests.store.other_pages import build_reads


class Measured(NamedTuple):
    """The blocks and the time in the database of a read."""

    blocks: int
    milliseconds: float
    group: str
    text: str


async def _measure_all(counter: Counter, *, is_sqlite: bool) -> list[Measured]:
    found = []
    for case in build_cases(every=True):
        blocks = await counter.count(case.query())
        found.append(Measured(blocks, counter.milliseconds, case.table, str(case)))
    for read in build_reads(is_sqlite=is_sqlite):
        blocks = await counter.count(read.build())
        found.append(Measured(blocks, counter.milliseconds, read.group, read.text))
    return sorted(found, reverse=True)


async def _measure(url: str) -> list[Measured]:
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        return await _measure_all(SqliteCounter(path), is_sqlite=True)
    connection = await asyncpg.connect(url)
    found = await _measure_all(PostgresCounter(connection), is_sqlite=False)
    await connection.close()
    return found


def _show(found: list[Measured]) -> None:
    """Print a line of a table for each group, then the reads with the most blocks."""
    for group in sorted({each.group for each in found}):
        own = [each for each in found if each.group == group]
        beyond = sum(each.blocks > MAXIMUM_BLOCKS for each in own)
        longest = max(each.milliseconds for each in own)
        middle = own[len(own) // 2].blocks
        print(
            f"| {group} | {len(own)} | {beyond} | {own[0].blocks:,} | {middle:,} | {longest:.1f} |"
        )
    for each in found[:40]:
        print(f"{each.blocks:>9,} {each.milliseconds:>8.1f} ms  {each.group}: {each.text}")


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--url", help="sqlite:////absolute/path or postgresql://…")
    parser.add_argument("--started", action="store_true", help="start and fill a PostgreSQL server")
    parser.add_argument("--sessions", type=int, default=1_000_000, help="with --started")
    parser.add_argument("--runs-per-session", type=int, default=5, help="with --started")
    options = parser.parse_args()
    if not options.started:
        _show(asyncio.run(_measure(options.url)))
        return
    with running_postgres() as url:
        population = Population(options.sessions, options.runs_per_session)
        asyncio.run(fill_database(url, population, related=True))
        print("filled", file=sys.stderr)
        _show(asyncio.run(_measure(url)))


if __name__ == "__main__":
    _main()
