"""Two sizes of the pool compared: `python -m bench.pool_sizes [--sizes 4 10]`.

A server of each size works on one PostgreSQL, in turns, with plain runs and reads of many callers.
The ratios are those of the medians of all turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2

from bench.servers import serve_endpoint
from bench.streams import AGENT, Reply
from tests.kit.deployment import ADMIN, SQLITE_DATABASES, create_deployment
from tests.kit.postgres_server import PostgresServer, run_postgres_server
from tests.lab.servers import Server

CALLERS = 32
ROUNDS = 7
SECONDS = 4.0

MESSAGE = Reply(words=20, size=6, seconds=0.0, hold=False).message


async def _run(client: httpx2.AsyncClient, caller: int) -> None:
    body = {"message": MESSAGE, "session_id": f"s{caller}", "stream": False}
    response = await client.post("/agents/paced/runs", json=body)
    assert response.status_code == 200, response.text


async def _list(client: httpx2.AsyncClient, _: int) -> None:
    response = await client.get("/runs?limit=20")
    assert response.status_code == 200, response.text


async def _count(
    client: httpx2.AsyncClient, call: Callable[[httpx2.AsyncClient, int], Awaitable[None]]
) -> float:
    """Return the calls per second of all callers."""
    began = time.monotonic()
    done = 0

    async def work(caller: int) -> None:
        nonlocal done
        while time.monotonic() < began + SECONDS:
            await call(client, caller)
            done += 1

    await asyncio.gather(*(work(caller) for caller in range(CALLERS)))
    return done / (time.monotonic() - began)


def _start(
    postgres: PostgresServer, folder: Path, endpoint: str, size: int, stack: contextlib.ExitStack
) -> httpx2.AsyncClient:
    place = folder / str(size)
    place.mkdir()
    main = f'url = "{postgres.url}"\nsearch_path = "pool_{size}"\npool_size = {size}'
    databases = {"main": main, "second": SQLITE_DATABASES["second"]}
    extra = AGENT.format(url=f"{endpoint}/v1")
    deployment = create_deployment(place, endpoint, extra=extra, databases=databases)
    server = Server(str(size), deployment)
    server.start()
    stack.callback(server.stop)
    headers = deployment.bearer("me", ADMIN, seconds=3_600)
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=60, limits=limits)


async def measure(sizes: list[int]) -> None:
    """Print the rates of all sizes, and their ratio to the last one."""
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(run_postgres_server(durable=True))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        endpoint = stack.enter_context(serve_endpoint())
        clients = {size: _start(postgres, folder, endpoint, size, stack) for size in sizes}
        print(f"| {CALLERS} callers | {' | '.join(f'pool {size}/s' for size in sizes)} | ratio |")
        print(f"| --- | {'---: | ' * len(sizes)}---: |")
        for name, call in (("plain runs", _run), ("lists of runs", _list)):
            rates: dict[int, list[float]] = {size: [] for size in sizes}
            for _ in range(ROUNDS):
                for size, client in clients.items():
                    rates[size].append(await _count(client, call))
            medians = [statistics.median(rates[size]) for size in sizes]
            shown = " | ".join(f"{median:.0f}" for median in medians)
            print(f"| {name} | {shown} | {medians[0] / medians[-1]:.2f} |", flush=True)
        for client in clients.values():
            await client.aclose()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 10])
    asyncio.run(measure(parser.parse_args().sizes))


if __name__ == "__main__":
    main()
