"""Blocks that the pages of lists and the other reads need, on a generated database.

`python -m tests.benchmarks.blocks --url URL` measures a database that `tests.benchmarks.seed
--related` has filled, and prints a table and the pages that read most. `--started` starts a
PostgreSQL server, fills it and measures it. A block is a page of 4 KB that SQLite fetches from its
cache or its file, or a buffer of 8 KB that PostgreSQL hits or reads. The filters are the fields of
the requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args, get_origin, get_type_hints

import apsw
import asyncpg

from agentctl.interface.requests import RunFilter, SessionFilter, SessionLocator
from agentctl.store.database import Work, compile_for_postgres
from agentctl.store.sqlite.connection import connect_reader, run_unit
from agentctl.store.visibility import EVERYONE, Visibility
from tests.benchmarks.other_pages import build_reads
from tests.benchmarks.population import COMPONENTS, DENSE_USER, START, YEAR, Population
from tests.benchmarks.seed import fill_database
from tests.postgres import running_postgres
from tests.store.lists import list_runs, list_sessions

MAXIMUM_BLOCKS = 2_000
"""Blocks of a page, of both engines."""

MIDDLE = (START + YEAR // 2, "")

_KNOWN: dict[str, tuple[Any, ...]] = {
    "user_id": (DENSE_USER, "absent"),
    "component_id": (COMPONENTS[0][1], "absent"),
    "session_name": ("q", "question about"),
    "metadata": (("absent=1",),),
    "id_prefix": ("absent00",),
    "error_code": ("absent", "MODEL_UNAVAILABLE"),
}
"""Values of filters that a generated database has; others follow from the type of the field."""

_PARTS = {"page", "form", "where", "db_id", "table", "search"}
"""Fields that are no filters of rows. `tests.benchmarks.reasons.search` measures a search."""


class Case(NamedTuple):
    """A page of a list."""

    table: Literal["runs", "sessions"]
    filters: dict[str, Any]
    visibility: Visibility
    part: dict[str, Any]

    def query(self) -> Work[Any]:
        """Return the unit that reads the page."""
        query = list_runs if self.table == "runs" else list_sessions
        return query(self.visibility, **self.filters, **self.part)

    def __str__(self) -> str:
        texts = [f"{name}={value}" for name, value in {**self.filters, **self.part}.items()]
        owner = "" if self.visibility.everyone else "of the dense user"
        return " ".join((self.table, owner, *texts))


def build_cases(*, every: bool) -> Iterator[Case]:
    """Yield pages with each filter and with each two filters.

    Args:
        every: with all values of two filters, and all pages for one user and after a cursor.
    """
    owners = (EVERYONE, Visibility(False, DENSE_USER))
    for table, request in (("runs", RunFilter), ("sessions", SessionFilter)):
        given = _list_values(request)
        singles = [{}, *({name: value} for name, values in given.items() for value in values)]
        pairs = [
            {first: one, second: other}
            for first, second in combinations(given, 2)
            for one in given[first][: None if every else 1]
            for other in given[second][: None if every else 1]
            if {first, second} != {"live", "status"}
        ]
        sorts = ("created_at",) if table == "runs" else ("created_at", "updated_at")
        for number, filters in enumerate(singles + pairs):
            whole = every or number < len(singles)
            for owner in owners if whole else owners[:1]:
                for sort in sorts if whole else sorts[:1]:
                    for after in (None, MIDDLE) if whole else (None,):
                        # A cursor has the total of the first page.
                        total = None if after is None else (5, True)
                        part = {"sort": sort, "after": after, "total": total}
                        yield Case(table, filters, owner, part)  # type: ignore[arg-type]


def _list_values(request: type[Any]) -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(request)
    names = [field.name for field in fields(request)]
    if "where" in names:
        names += [field.name for field in fields(SessionLocator)]
        hints |= get_type_hints(SessionLocator)
    return {
        name: _KNOWN.get(name) or _choose_values(hints[name])
        for name in names
        if name not in _PARTS
    }


def _choose_values(hint: Any) -> tuple[Any, ...]:
    for each in (hint, *get_args(hint)):
        if get_origin(each) is Literal:
            return get_args(each)
        if get_origin(each) is tuple:
            return (("absent",),)
        if each in (bool, int, str):
            return {bool: (True,), int: (START + YEAR // 2,), str: ("absent",)}[each]
    raise AssertionError(f"a filter of the type {hint} needs a value in _KNOWN")


class Counter(Protocol):
    """Counts the blocks of a unit; `milliseconds` is the time of the last one in the database."""

    milliseconds: float

    async def count(self, work: Work[Any]) -> int: ...


class SqliteCounter:
    """Counts the pages of a file."""

    milliseconds = 0.0

    def __init__(self, path: Path) -> None:
        self._reader = connect_reader(path)
        self._reader.pragma("mmap_size", 0)

    async def count(self, work: Work[Any]) -> int:
        """Return the pages that a unit fetches."""
        kinds = (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS)
        before = sum(self._reader.status(kind)[0] for kind in kinds)
        began = time.process_time()
        run_unit(self._reader, work)
        self.milliseconds = (time.process_time() - began) * 1_000
        return sum(self._reader.status(kind)[0] for kind in kinds) - before

    def close(self) -> None:
        self._reader.close()


class PostgresCounter:
    """Counts the buffers of a connection."""

    milliseconds = 0.0

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection

    async def count(self, work: Work[Any]) -> int:
        """Return the buffers of the plans of all statements of a unit."""
        async with self._connection.transaction(readonly=True):
            # As of the reads of lists (docs/decisions/0126).
            await self._connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
            return await self._count(work)

    async def _count(self, work: Work[Any]) -> int:
        steps = iter(work)
        rows = None
        blocks = 0
        self.milliseconds = 0.0
        try:
            while True:
                statement = steps.send(rows)  # type: ignore[arg-type]
                text, names = compile_for_postgres(statement.sql)
                values = [statement.parameters[name] for name in names]
                if not text.startswith("EXPLAIN"):
                    explain = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON)"
                    plans = await self._connection.fetchval(f"{explain} {text}", *values)
                    (found,) = json.loads(plans)
                    plan = found["Plan"]
                    blocks += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
                    self.milliseconds += found["Execution Time"]
                fetched = await self._connection.fetch(text, *values)
                rows = [tuple(row) for row in fetched]
        except StopIteration:
            return blocks


async def count_all(counter: Counter, *, every: bool) -> list[tuple[int, Case]]:
    """Return the blocks of all pages of runs and sessions, the largest first."""
    found = [(await counter.count(case.query()), case) for case in build_cases(every=every)]
    return sorted(found, key=lambda each: -each[0])


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
