"""`GET /ready` while another program locks a table."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg

from agentctl import errors
from agentctl.interface.requests import RunRequest
from agentctl.work.event_loop import retry_while_unavailable
from tests.kit.conditions import wait_until
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer
from tests.kit.service import open_service, user

POOL = 8
"""Connections of each database: more than the jobs of the server can hold at the same time."""


def build_databases(url: str, own: str) -> dict[str, str]:
    """Return two databases with schemas of their own, whose statements may take long."""
    return {
        name: f'url = "{url}"\nsearch_path = "{name}_{own}"\npool_size = {POOL}\n'
        "statement_seconds = 60"
        for name in ("main", "second")
    }


@contextlib.asynccontextmanager
async def connect_directly(url: str, schema: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Open a connection of another program to a schema."""
    connection = await asyncpg.connect(url, server_settings={"search_path": schema})
    try:
        yield connection
    finally:
        await connection.close()


async def test_locked_table_matters_once_it_takes_all_connections(
    tmp_path: Path, model_endpoint: ModelEndpoint, server: PostgresServer
) -> None:
    own = uuid4().hex
    databases = build_databases(server.url, own)
    deployment = create_deployment(tmp_path, model_endpoint.base_url, databases=databases)
    async with (
        open_service(deployment) as service,
        connect_directly(server.url, f"main_{own}") as connection,
    ):
        port = user(service)
        database = service.hosting.databases.system
        run = (await port.runs.create("agent", "echo", RunRequest("x"))).value

        async def is_ready() -> bool:
            return (await port.system.get_readiness()).value["status"] == "ready"

        async with connection.transaction():
            await connection.execute("LOCK TABLE runs")
            assert await is_ready()
            reads = [asyncio.create_task(port.runs.get(run["run_id"])) for _ in range(POOL)]
            await wait_until(lambda: database.load().in_use == POOL)
            document = await port.system.get_readiness()
            assert document.value["checks"]["database"] == "failed"

        # A statement of the server may have had one of the connections: then a read has waited for
        # it for longer than `wait_seconds`.
        for read in reads:
            with contextlib.suppress(errors.Unavailable):
                assert (await read).value["run_id"] == run["run_id"]
        await wait_until(is_ready)
        found = await retry_while_unavailable(lambda: port.runs.get(run["run_id"]))
        assert found.value["run_id"] == run["run_id"]
