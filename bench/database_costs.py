"""The costs of work: CPU time of this process and of the database, statements, commits and rows."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import apsw

from bench.postgres_meter import Counters, Meter
from tests.kit.postgres_server import run_postgres_server

Engine = Literal["sqlite", "postgresql"]

SCHEMA = "measured"

REPORT_SECONDS = 11.0
"""Time after which an idle connection of PostgreSQL has reported what it has read."""

_ROWS = f"""
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
FROM pg_stat_all_tables WHERE schemaname = '{SCHEMA}'
"""


class Costs(NamedTuple):
    """Costs up to a moment, or between two moments.

    Attributes:
        seconds: elapsed time.
        cpu: CPU seconds of this process, with SQLite.
        database_cpu: CPU seconds of PostgreSQL.
        statements: sent to the database, with BEGIN and COMMIT; on PostgreSQL only while it logs.
        commits: transactions that have written something.
        rows: rows that PostgreSQL has read, or that SQLite has returned (`Measured.count_rows`).
    """

    seconds: float
    cpu: float
    database_cpu: float
    statements: float
    commits: float
    rows: float = 0

    def since(self, before: Costs, count: int = 1) -> Costs:
        """Return the costs between two moments, divided by a number of things."""
        return Costs(*((now - then) / count for now, then in zip(self, before, strict=True)))

    @property
    def all_cpu(self) -> float:
        """CPU seconds of this process and of the database."""
        return self.cpu + self.database_cpu


class Measured(ABC):
    """A database whose costs are counted.

    Attributes:
        entry: the lines of its configuration.
    """

    entry: str

    @abstractmethod
    async def read(self) -> Costs:
        """Return the costs so far, but for the rows."""

    @abstractmethod
    async def count_rows(self) -> float:
        """Return the number of rows so far; PostgreSQL reports them after some seconds."""

    @abstractmethod
    async def execute(self, *statements: str) -> None:
        """Execute statements past the program."""

    @abstractmethod
    async def count_statements(self, on: bool) -> None:
        """Begin or end to count statements, if that costs the database CPU time."""


class MeasuredSqlite(Measured):
    """A file; all connections of this process to any file are counted.

    Attributes:
        file: its path.
    """

    def __init__(self, file: Path) -> None:
        self.entry = f'url = "sqlite:///{file}"'
        self.file = file
        self._statements = self._commits = self._rows = 0

    def follow(self, connection: apsw.Connection) -> None:
        """Count the statements of a connection."""
        connection.set_exec_trace(self._count)
        connection.set_row_trace(self._count_row)

    def _count(self, _cursor: Any, sql: str, _bindings: Any) -> bool:
        self._statements += 1
        self._commits += sql.startswith("COMMIT")
        return True

    def _count_row(self, _cursor: Any, row: Any) -> Any:
        self._rows += 1
        return row

    async def read(self) -> Costs:
        return Costs(time.monotonic(), time.process_time(), 0, self._statements, self._commits)

    async def count_rows(self) -> float:
        return self._rows

    async def count_statements(self, on: bool) -> None:
        """Do nothing: they are counted always."""

    async def execute(self, *statements: str) -> None:
        with contextlib.closing(apsw.Connection(str(self.file))) as connection:
            for statement in statements:
                connection.execute(statement)


class MeasuredPostgres(Measured):
    """A separate PostgreSQL server."""

    def __init__(self, url: str, meter: Meter) -> None:
        self.entry = f'url = "{url}"\nsearch_path = "{SCHEMA}"'
        self._meter = meter
        self._start: Counters | None = None
        self._logging = False

    async def read(self) -> Costs:
        statements = 0
        counters = await self._meter.read()
        if self._start is None:
            self._start = counters
        if self._logging:
            statements = sum(self._meter.count_statements(self._start, counters).values())
        cpu = time.process_time()
        database_cpu = counters.cpu
        return Costs(counters.seconds, cpu, database_cpu, statements, counters.writes)

    async def count_rows(self) -> float:
        await asyncio.sleep(REPORT_SECONDS)
        return float(await self._meter.fetchval(_ROWS))

    async def execute(self, *statements: str) -> None:
        await self._meter.execute(f"SET search_path = '{SCHEMA}'", *statements)

    async def count_statements(self, on: bool) -> None:
        await self._meter.log_statements(on)
        self._logging = on


@contextlib.asynccontextmanager
async def open_measured(engine: Engine, folder: Path) -> AsyncIterator[Measured]:
    """Provide an empty database; PostgreSQL does not flush to the disk."""
    if engine == "sqlite":
        measured = MeasuredSqlite(folder / "measured.db")
        apsw.connection_hooks.append(measured.follow)
        try:
            yield measured
        finally:
            apsw.connection_hooks.remove(measured.follow)
        return
    with run_postgres_server() as server:
        meter = Meter(server, SCHEMA)
        await meter.open()
        try:
            yield MeasuredPostgres(server.url, meter)
        finally:
            await meter.close()
