"""PostgreSQL beside SQLite, and each beside a bare read of its driver."""

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
from tests.benchmarks.client import encode_form
from tests.benchmarks.load import beside
from tests.benchmarks.measure import Row, compared
from tests.benchmarks.places import Place, ours
from tests.benchmarks.reads import AGENT
from tests.benchmarks.seeding import seed
from tests.benchmarks.work import SHORT_RUNS, Work, make_work, many_sessions, sized
from tests.deployment import Deployment
from tests.postgres import running_postgres

__all__ = ["beside_each_other"]

READS = 500
"""In one round of bare reads."""

_COLUMNS = "SELECT * FROM sessions WHERE session_id = "

Read = Callable[[], Awaitable[object]]


def beside_each_other(folder: Path, model_url: str) -> Iterator[Row]:
    """The same server on the one and on the other."""
    listed = [*sized((1, 100)), *many_sessions(100, SHORT_RUNS)]
    with running_postgres(durable=True) as url:
        file = make_work(folder / "file", model_url, listed)
        server = make_work(folder / "server", model_url, listed, database=url)
        seed(file)
        seed(server)
        yield from _bare(file, "SQLite", "apsw", _apsw(file))
        yield from _bare(server, "PostgreSQL", "asyncpg", _asyncpg(url))
        with ours(file) as one, ours(server) as other:
            yield from _over_http(one, other)


def _over_http(file: Place, server: Place) -> Iterator[Row]:
    run = f"/agents/{AGENT}/runs", encode_form(stream=False)
    for work, path, body in (
        ("session detail, 1 run", "/sessions/runs-1", None),
        ("session detail, 100 runs", "/sessions/runs-100", None),
        ("list 20 of 100 sessions", "/sessions?limit=20", None),
        ("runs, plain", *run),
    ):
        loads = [
            place.get(path) if body is None else place.post(path, body, seconds=2)
            for place in (server, file)
        ]
        yield beside(f"{work}, on PostgreSQL", loads[0], "SQLite", loads[1], 3)


def _bare(work: Work, engine: str, driver: str, opened: Any) -> Iterator[Row]:
    """A session read through the store, and by the driver alone."""
    found = asyncio.run(_bare_rates(work, opened))
    name = f"point read through the store, {engine}"
    yield compared(name, found["ours"], f"bare {driver}", found["bare"], "/s")


async def _bare_rates(work: Work, opened: Any) -> dict[str, list[float]]:
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
                found[name].append(await _rate(read))
        return found


async def _rate(read: Read) -> float:
    start = time.perf_counter()
    for _ in range(READS):
        await read()
    return READS / (time.perf_counter() - start)


@asynccontextmanager
async def _apsw(work: Work) -> AsyncIterator[Read]:
    path = str(work.folder / "agentctl.db")
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)

    async def read() -> object:
        return connection.execute(f"{_COLUMNS}?", ("runs-1",)).fetchall()

    yield read
    connection.close()


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Read]:
    connection = await asyncpg.connect(url)

    async def read() -> object:
        return await connection.fetch(f"{_COLUMNS}$1", "runs-1")

    yield read
    await connection.close()
