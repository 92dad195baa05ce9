"""Units on PostgreSQL by the driver of agentctl and by the pool of asyncpg.

`python -m tests.benchmarks.reasons.postgres_units` starts a PostgreSQL server and the proxy of
`tests.benchmarks.reasons.pool`, which cuts a connection after its COMMIT was executed. A caller
that gets a lost connection repeats its unit once with asyncpg; with agentctl the driver decides
that. Printed is how often a unit that inserts a row was committed twice. The medians are the
microseconds of a read of a row and of a write of a row, in turns, without the proxy.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg

from agentctl.config.settings import Database
from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.postgres.database import PostgresDatabase
from tests.benchmarks.reasons.pool import proxy
from tests.postgres_server import run_postgres_server

LOST_COMMITS = 20
ROUNDS = 9
COUNT = 300
INSERT = Sql("INSERT INTO entries (v) VALUES (:v)")
READ = Sql("SELECT v FROM entries WHERE k = :k")

Call = Callable[[], Awaitable[Any]]


@unit
def insert() -> Steps[None]:
    yield Statement(INSERT, {"v": "x"})


async def write_by_library(pool: Any) -> None:
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("INSERT INTO entries (v) VALUES ($1)", "x")


async def repeat_by_library(pool: Any) -> None:
    """Write, and once more if the connection was lost."""
    try:
        await write_by_library(pool)
    except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError):
        await write_by_library(pool)


async def count_doubles(url: str, direct: Any, server: Path) -> None:
    """Print how many units were committed twice, or not at all."""
    print("| lost COMMITs | units | committed twice | not committed |")
    print("| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        async with proxy(server, Path(folder)) as cut_url:
            ours = PostgresDatabase(Database(id="main", url=url), create=True)
            await ours.check()
            await ours.close()
            for name in ("agentctl", "asyncpg, repeated by the caller"):
                doubles = missing = 0
                for _ in range(LOST_COMMITS):
                    await direct.execute("TRUNCATE entries")
                    await write_once(name, cut_url)
                    rows = await direct.fetchval("SELECT count(*) FROM entries")
                    doubles = doubles + (rows > 1)
                    missing = missing + (rows < 1)
                print(f"| {name} | {LOST_COMMITS} | {doubles} | {missing} |")


async def write_once(name: str, url: str) -> None:
    if name == "agentctl":
        ours = PostgresDatabase(Database(id="main", url=url), create=False)
        ours._schema_checked = True  # its COMMIT would be cut as well
        await ours.write(insert())
        await ours.close()
        return
    pool = await asyncpg.create_pool(url, min_size=0, max_size=10)
    try:
        await repeat_by_library(pool)
    except (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError):
        pass  # The second COMMIT was cut, too.
    finally:
        pool.terminate()


async def measure(call: Call) -> float:
    """Return the microseconds of a call."""
    began = time.perf_counter()
    for _ in range(COUNT):
        await call()
    return (time.perf_counter() - began) / COUNT * 1e6


async def compare_times(url: str, key: int) -> None:
    ours = PostgresDatabase(Database(id="main", url=url), create=True)
    theirs = await asyncpg.create_pool(url, min_size=0, max_size=10)
    cases: dict[str, tuple[Call, Call]] = {
        "a read of a row": (
            lambda: ours.read(READ.value(k=key)),
            lambda: theirs.fetchval("SELECT v FROM entries WHERE k = $1", key),
        ),
        "a write of a row": (lambda: ours.write(insert()), lambda: write_by_library(theirs)),
    }
    print("\n| us | agentctl | asyncpg | ratio |\n| --- | ---: | ---: | ---: |")
    for name, (own, library) in cases.items():
        await own()
        await library()
        pairs = [(await measure(own), await measure(library)) for _ in range(ROUNDS)]
        ratio = median(one / other for one, other in pairs)
        medians = [median(side) for side in zip(*pairs, strict=True)]
        print(f"| {name} | {medians[0]:.0f} | {medians[1]:.0f} | {ratio:.2f} |")
    await ours.close()
    theirs.terminate()


async def compare(url: str, server: Path) -> None:
    direct = await asyncpg.connect(url)
    await direct.execute("CREATE TABLE entries (k bigserial PRIMARY KEY, v text)")
    await count_doubles(url, direct, server)
    key = await direct.fetchval("INSERT INTO entries (v) VALUES ('x') RETURNING k")
    await compare_times(url, key)
    await direct.close()


def main() -> None:
    """Print both tables."""
    with run_postgres_server() as server:
        asyncio.run(compare(server.url, server.socket))


if __name__ == "__main__":
    main()
