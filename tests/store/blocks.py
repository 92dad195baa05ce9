"""Blocks that the pages of lists need, on a generated database.

A block is a page of 4 KB that SQLite fetches from its cache or its file, or a buffer of 8 KB that
PostgreSQL hits or reads. The filters are the fields of the requests.
"""

from __future__ import annotations

import json
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
from tests.generated.population import COMPONENTS, DENSE_USER, START, YEAR
from tests.store.lists import list_runs, list_sessions

MAXIMUM_BLOCKS = 2_000
"""Blocks of a page, of both engines."""

SCANNED_ROWS = 20_000
"""Rows of a table that may be read in their order: the count of a list ends after 10,001 rows."""

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
"""Fields that are no filters of rows."""


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
    """Counts the buffers of a connection.

    Attributes:
        scanned: a statement that reads a table from its first row on, by the name of the table; not
            one that ends after `SCANNED_ROWS`.
    """

    milliseconds = 0.0

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection
        self.scanned: dict[str, str] = {}

    async def count(self, work: Work[Any]) -> int:
        """Return the buffers of the plans of all statements of a unit."""
        async with self._connection.transaction(readonly=True):
            # As of the reads of lists (decision 126).
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
                    self.scanned |= dict.fromkeys(_list_scanned_tables(plan), text)
                fetched = await self._connection.fetch(text, *values)
                rows = [tuple(row) for row in fetched]
        except StopIteration:
            return blocks


def _list_scanned_tables(plan: dict[str, Any]) -> Iterator[str]:
    """Yield the tables that a plan reads from their first row on, without an index."""
    if plan["Node Type"] == "Seq Scan":
        rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        if rows * plan["Actual Loops"] > SCANNED_ROWS:
            yield plan["Relation Name"]
    for part in plan.get("Plans", ()):
        yield from _list_scanned_tables(part)


async def count_all(counter: Counter, *, every: bool) -> list[tuple[int, Case]]:
    """Return the blocks of all pages of runs and sessions, the largest first."""
    found = [(await counter.count(case.query()), case) for case in build_cases(every=every)]
    return sorted(found, key=lambda each: -each[0])
