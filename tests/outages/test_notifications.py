"""Notifications between servers: those that arrive, and servers that receive none."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer
from tests.kit.process import ServerProcess, base_environment, run_agentctl, serve_config
from tests.outages.proxy import ProxyApart, proxied_apart

CONFIG = """
[metrics]
listen = "127.0.0.1:0"
"""


@pytest.fixture
def way(server: PostgresServer) -> Iterator[ProxyApart]:
    with proxied_apart(server.socket) as way:
        yield way


@pytest.fixture
def deployment(tmp_path: Path, way: ProxyApart, model_endpoint: ModelEndpoint) -> Deployment:
    databases = {
        "main": f'url = "{way.url}"\nsearch_path = "deaf_{uuid4().hex}"',
        "second": 'url = "sqlite:///second.db"',
    }
    return create_deployment(tmp_path, model_endpoint.base_url, databases=databases, extra=CONFIG)


def read_metric(served: ServerProcess, name: str) -> list[float]:
    found = re.search(r"^metrics: (http://\S+)$", served.wait_for("metrics: "), re.MULTILINE)
    assert found is not None
    return [
        sample.value
        for family in text_string_to_metric_families(httpx2.get(found[1]).text)
        for sample in family.samples
        if sample.name == name
    ]


async def execute(deployment: Deployment, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Execute a command in the folder of a deployment."""
    return await asyncio.to_thread(
        run_agentctl, *arguments, cwd=deployment.folder, env=base_environment()
    )


async def test_a_server_without_notifications_says_so_and_polls(
    way: ProxyApart, deployment: Deployment
) -> None:
    way.deafen(True)
    headers = deployment.bearer("me", ADMIN)
    with serve_config(deployment.path) as served:
        async with httpx2.AsyncClient(
            base_url=served.url, headers=headers, timeout=PATIENCE
        ) as client:
            # Nothing waits for notifications before the first run.
            assert read_metric(served, "agentctl_database_notified") == []
            body = {"message": "x", "session_id": "s1", "background": True, "stream": False}
            run = (await client.post("/agents/hang/runs", json=body)).json()
            await wait_until(lambda: read_metric(served, "agentctl_database_notified") == [0])
            assert served.wait_for("do not arrive").count("notifications do not arrive") == 1
            doctor = await execute(deployment, "doctor")
            assert b"notifications between servers do not arrive" in doctor.stdout
            # The request of another server is a change of the row.
            path = f"/agents/hang/runs/{run['run_id']}"
            cancelled = await execute(
                deployment, "runs", "cancel", run["run_id"], "--yes", "--wait", "30"
            )
            assert cancelled.returncode == 0, cancelled.stderr
            stored = await client.get(f"{path}?session_id=s1")
            assert stored.json()["status"] == "CANCELLED"
            way.deafen(False)
            way.cut()
            await wait_until(lambda: read_metric(served, "agentctl_database_notified") == [1])
            assert served.wait_for("arrive again").count("notifications arrive again") == 1
