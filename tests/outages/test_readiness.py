"""`GET /ready` while another program locks a table."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from uuid import uuid4

import asyncpg

from agentctl import errors
from agentctl.interface.requests import RunRequest
from agentctl.work.event_loop import retry_while_unavailable
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer
from tests.service.callers import open_service, user

POOL = 8
"""Connections of each database: more than the jobs of the server can hold at the same time."""


async def test_locked_table_matters_once_it_takes_all_connections(
    tmp_path: Path, model_endpoint: ModelEndpoint, server: PostgresServer
) -> None:
    own = uuid4().hex
    databases = {
        name: f'url = "{server.url}"\nsearch_path = "{name}_{own}"\npool_size = {POOL}\n'
        "statement_seconds = 60"
        for name in ("main", "second")
    }
    deployment = create_deployment(tmp_path, model_endpoint.base_url, databases=databases)
    async with open_service(deployment) as service:
        port = user(service)
        database = service.hosting.databases.system
        run = (await port.runs.create("agent", "echo", RunRequest("x"))).value
        connection = await asyncpg.connect(
            server.url, server_settings={"search_path": f"main_{own}"}
        )
        try:
            async with connection.transaction():
                await connection.execute("LOCK TABLE runs")
                assert (await port.system.get_readiness()).value["status"] == "ready"
                reads = [asyncio.create_task(port.runs.get(run["run_id"])) for _ in range(POOL)]
                await wait_until(lambda: database.load().in_use == POOL)
                document = await port.system.get_readiness()
                assert document.value["checks"]["database"] == "failed"
            # A statement of the server may have had one of the connections: then a read has waited
            # for it for longer than `wait_seconds`.
            for read in reads:
                with contextlib.suppress(errors.Unavailable):
                    assert (await read).value["run_id"] == run["run_id"]
            async with asyncio.timeout(PATIENCE):
                while (await port.system.get_readiness()).value["status"] != "ready":
                    await asyncio.sleep(0.1)
            found = await retry_while_unavailable(lambda: port.runs.get(run["run_id"]))
            assert found.value["run_id"] == run["run_id"]
        finally:
            await connection.close()
