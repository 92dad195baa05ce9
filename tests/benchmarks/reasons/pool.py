"""A connection that is lost at its COMMIT: asyncpg's pool next to agentctl's.

`python -m tests.benchmarks.reasons.pool` starts a PostgreSQL server and a proxy in front of it.
In each round a row is inserted on a connection of the pool and committed; the proxy forwards the
COMMIT, waits for the response, and cuts the connection instead of forwarding it. The handler then
closes the connection and raises an exception that states that the outcome is unknown. Printed is
which exception the caller of the pool gets, and how often the row was there although the exception
stated that the connection was lost before.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import asyncpg

from agentctl.config.settings import Database
from agentctl.store.postgres.pool import Pool
from tests.postgres_server import run_postgres_server

ROUNDS = 20


class OutcomeUnknown(Exception):
    """The exception of the caller: nothing is known about the outcome of the commit."""


@contextlib.asynccontextmanager
async def proxy(server: Path, folder: Path) -> AsyncIterator[str]:
    """Forward connections to the socket `server`, and cut each after its COMMIT was executed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_unix_connection(str(server))
        cut = False

        async def back() -> None:
            while data := await answers.read(65_536):
                if cut:
                    writer.transport.abort()
                    return
                writer.write(data)

        task = asyncio.create_task(back())
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                cut = cut or data.rstrip(b"\0;").endswith(b"COMMIT")
                requests.write(data)
        requests.close()
        await task

    listening = await asyncio.start_unix_server(serve, str(folder / ".s.PGSQL.5432"))
    async with listening:
        yield f"postgresql://postgres@/postgres?host={folder}"


async def insert(block: AbstractAsyncContextManager[Any]) -> str:
    """Insert a row and commit; return the type of the exception that leaves the block."""
    try:
        async with block as connection:
            await connection.execute("BEGIN")
            await connection.execute("INSERT INTO t VALUES (1)")
            try:
                await connection.execute("COMMIT")
            except Exception:
                connection.terminate()
                raise OutcomeUnknown from None
    except Exception as error:
        return type(error).__name__
    return "none"


async def measure(server: Path, folder: Path) -> dict[str, Counter[tuple[str, int]]]:
    """Return how often each pool led to which exception, with the rows of the round."""
    direct = await asyncpg.connect(f"postgresql://postgres@/postgres?host={server.parent}")
    await direct.execute("CREATE TABLE t (a int)")
    found = {"asyncpg": Counter[tuple[str, int]](), "agentctl": Counter[tuple[str, int]]()}
    async with proxy(server, folder) as url:
        ours = Pool(Database(id="main", url=url))
        theirs = await asyncpg.create_pool(url, min_size=0, max_size=10)
        for _ in range(ROUNDS):
            for name, block in (("asyncpg", theirs.acquire()), ("agentctl", ours.borrow())):
                await direct.execute("TRUNCATE t")
                raised = await insert(block)
                found[name][raised, await direct.fetchval("SELECT count(*) FROM t")] += 1
        await ours.close()
        theirs.terminate()
    await direct.close()
    return found


def main() -> None:
    """Print the table."""
    with run_postgres_server() as server, tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(server.socket, Path(folder)))
    print("| pool | rounds | exception of the block | rows that were committed |")
    print("| --- | --- | --- | --- |")
    for pool, outcomes in found.items():
        for (raised, rows), count in outcomes.items():
            print(f"| {pool} | {count} | {raised} | {rows} |")


if __name__ == "__main__":
    main()
