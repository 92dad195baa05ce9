"""The connections of a server to PostgreSQL, as PostgreSQL counts them for its user."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import httpx2
import pytest

from tests.kit.deployment import SQLITE_DATABASES, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer, execute
from tests.lab.servers import Server
from tests.poolers.test_pgbouncer import as_role, client_of

ROLE = "counted"

IDLE = 2
MOST = 5

CALLERS = 24
SECONDS = 2.0

COUNT = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{ROLE}'"


@pytest.fixture
def counted(
    server: PostgresServer, model_endpoint: ModelEndpoint, tmp_path: Path
) -> Iterator[Server]:
    execute(server, f"CREATE ROLE {ROLE} LOGIN", f"CREATE SCHEMA {ROLE} AUTHORIZATION {ROLE}")
    main = f'url = "{as_role(server.url, ROLE)}"\nsearch_path = "{ROLE}"'
    databases = {"main": main, "second": SQLITE_DATABASES["second"]}
    deployment = create_deployment(tmp_path, model_endpoint.base_url, databases=databases)
    with ExitStack() as stack:
        counted = Server("counted", deployment)
        counted.start()
        stack.callback(counted.stop)
        yield counted


async def test_server_has_two_connections_idle_and_five_at_most(
    server: PostgresServer, counted: Server
) -> None:
    admin = await asyncpg.connect(server.url)
    try:
        idle = [await admin.fetchval(COUNT)]
        for _ in range(30):
            await asyncio.sleep(0.1)
            idle.append(await admin.fetchval(COUNT))
        assert max(idle) <= IDLE
        assert min(idle) > 0
        counts = await count_under_load(counted, admin)
        assert max(counts) == MOST
    finally:
        await admin.close()


async def count_under_load(counted: Server, admin: asyncpg.Connection[asyncpg.Record]) -> list[int]:
    clock = asyncio.get_running_loop().time
    until = clock() + SECONDS
    counts: list[int] = []

    async def call(client: httpx2.AsyncClient, number: int) -> None:
        while clock() < until or max(counts, default=0) < MOST:
            body = {"message": "hello", "session_id": f"s{number}", "stream": False}
            answer = await client.post("/agents/echo/runs", json=body)
            assert answer.status_code == 200, answer.text

    async with client_of(counted) as client:
        callers = [asyncio.create_task(call(client, number)) for number in range(CALLERS)]
        working = asyncio.gather(*callers)

        async def count() -> None:
            counts.append(await admin.fetchval(COUNT))

        while not working.done():
            await count()
            await asyncio.sleep(0.02)
            assert clock() < until + 60
        await working
    return counts
