"""PostgreSQL compared with SQLite, and each with a bare read of its driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from agentctl.service.service import Service
from agentctl.store.repositories import sessions
from agentctl.store.visibility import Visibility
from bench.measure import Row, build_ratio_row
from bench.seeding import seed_database
from bench.work import SHORT_RUNS, Work, create_work, listed_sessions, sized_sessions
from tests.kit.deployment import Deployment
from tests.kit.postgres import running_postgres

__all__ = ["compare_engines"]

READS = 500
"""Reads per round."""

_COLUMNS = "SELECT * FROM sessions WHERE session_id = "

Read = Callable[[], Awaitable[object]]


def compare_engines(folder: Path, model_url: str) -> Iterator[Row]:
    """Compare reads through the store with those of the drivers."""
    listed = [*sized_sessions((1, 100)), *listed_sessions(100, SHORT_RUNS)]
    with running_postgres(durable=True) as url:
        file = create_work(folder / "file", model_url, listed)
        server = create_work(folder / "server", model_url, listed, database=url)
        seed_database(file)
        seed_database(server)
        yield from _compare_with_driver(file, "SQLite", "apsw", _open_apsw(file))
        yield from _compare_with_driver(server, "PostgreSQL", "asyncpg", _open_asyncpg(url))


def _compare_with_driver(work: Work, engine: str, driver: str, opened: Any) -> Iterator[Row]:
    """Compare a session read through the store with a read by the driver alone."""
    found = asyncio.run(_measure_read_rates(work, opened))
    name = f"point read through the store, {engine}"
    yield build_ratio_row(name, found["ours"], f"bare {driver}", found["bare"], "/s")


async def _measure_read_rates(work: Work, opened: Any) -> dict[str, list[float]]:
    user = Visibility(everyone=False, user_id=work.user)
    async with Service.open(Deployment(work.folder).settings) as service, opened as bare:
        database = service.hosting.databases["main"]
        reads: dict[str, Read] = {
            "ours": lambda: database.read(sessions.get("runs-1", user)),
            "bare": bare,
        }
        found: dict[str, list[float]] = {name: [] for name in reads}
        for read in reads.values():
            await read()
        for _ in range(7):
            for name, read in reads.items():
                found[name].append(await _measure_rate(read))
        return found


async def _measure_rate(read: Read) -> float:
    start = time.perf_counter()
    for _ in range(READS):
        await read()
    return READS / (time.perf_counter() - start)


@asynccontextmanager
async def _open_apsw(work: Work) -> AsyncIterator[Read]:
    path = str(work.folder / "agentctl.db")
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)

    async def read() -> object:
        return connection.execute(f"{_COLUMNS}?", ("runs-1",)).fetchall()

    yield read
    connection.close()


@asynccontextmanager
async def _open_asyncpg(url: str) -> AsyncIterator[Read]:
    connection = await asyncpg.connect(url)

    async def read() -> object:
        return await connection.fetch(f"{_COLUMNS}$1", "runs-1")

    yield read
    await connection.close()
