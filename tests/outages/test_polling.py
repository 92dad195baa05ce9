"""A server that receives no notifications polls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import asyncpg

from agentctl.interface.requests import RunRequest
from agentctl.store.postgres.database import PostgresDatabase
from tests.kit.conditions import wait_until
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer
from tests.kit.service import open_service, user, wait_for_running

REQUEST = """
UPDATE runs SET cancel_requested_at = 1, cancel_requested_by = 'other' WHERE status = 'RUNNING'
"""


async def test_a_cancel_is_found_without_notifications(
    tmp_path: Path, model_endpoint: ModelEndpoint, server: PostgresServer
) -> None:
    own = uuid4().hex
    databases = {
        name: f'url = "{server.url}"\nsearch_path = "{name}_{own}"' for name in ("main", "second")
    }
    deployment = create_deployment(tmp_path, model_endpoint.base_url, databases=databases)
    async with open_service(deployment) as service:
        port = user(service)
        asked = asyncio.create_task(port.runs.create("agent", "hang", RunRequest("x")))
        await wait_for_running(port)
        database = service.hosting.databases.system
        assert isinstance(database, PostgresDatabase)
        await database._listener.close()
        connection = await asyncpg.connect(
            server.url, server_settings={"search_path": f"main_{own}"}
        )
        await connection.execute(REQUEST)
        await connection.close()
        await wait_until(asked.done)
        assert (await asked).value["status"] == "CANCELLED"
