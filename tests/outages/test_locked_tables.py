"""Requests while another program holds a lock on a table."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from agentctl import errors
from agentctl.interface.requests import RunRequest
from agentctl.service.service import Service
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer
from tests.kit.service import open_service, user

POOL = 6
"""Connections of each database: more than the jobs of the server use at the same time."""


class Place:
    """A service on PostgreSQL, and the lock of another program."""

    def __init__(self, deployment: Deployment, server: PostgresServer, schema: str) -> None:
        self.deployment = deployment
        self._server = server
        self._schema = schema

    @contextlib.asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        connection = await asyncpg.connect(
            self._server.url, server_settings={"search_path": self._schema}
        )
        try:
            async with connection.transaction():
                await connection.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
                yield
        finally:
            await connection.close()


@pytest.fixture
def place(tmp_path: Path, model_endpoint: ModelEndpoint, server: PostgresServer) -> Place:
    own = uuid4().hex
    databases = {
        name: f'url = "{server.url}"\nsearch_path = "{name}_{own}"\npool_size = {POOL}\n'
        f"wait_seconds = 1\nstatement_seconds = {2 * PATIENCE}"
        for name in ("main", "second")
    }
    deployment = create_deployment(tmp_path, model_endpoint.base_url, databases=databases)
    return Place(deployment, server, f"main_{own}")


async def fill_pool(service: Service, run_id: str) -> list[asyncio.Task[object]]:
    """Let reads of the locked table take all connections."""
    database = service.hosting.databases.system
    reads: list[asyncio.Task[object]] = []
    while database.load().waiting == 0:
        reads.append(asyncio.create_task(user(service).runs.get(run_id)))
        await asyncio.sleep(0.01)
    return reads


async def test_first_start_after_a_lock_waits_for_a_connection(place: Place) -> None:
    async with open_service(place.deployment) as service:
        port = user(service)
        database = service.hosting.databases.system
        run_id = (await port.runs.create("agent", "echo", RunRequest("x"))).value["run_id"]

        # A read waits for `wait_seconds`. From then on the pool is late.
        async with place.lock():
            reads = await fill_pool(service, run_id)
            with pytest.raises(errors.Unavailable, match="busy"):
                await port.runs.get(run_id)
            reads += await fill_pool(service, run_id)
            with pytest.raises(errors.Unavailable, match="busy"):
                await port.runs.create("agent", "echo", RunRequest("at once"))
        await asyncio.gather(*reads, return_exceptions=True)
        await port.runs.get(run_id)

        # That was long ago: the first start of another lock waits for as long as others do.
        async with place.lock():
            reads = await fill_pool(service, run_id)
            assert not database.is_late
            start = asyncio.create_task(port.runs.create("agent", "echo", RunRequest("y")))
            await wait_until(lambda: database.load().waiting >= 2)
            assert not start.done()
        await asyncio.gather(*reads, return_exceptions=True)
        assert (await start).value["status"] == "COMPLETED"
