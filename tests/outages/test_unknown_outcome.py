"""Runs with an unknown outcome of their first commit: each of them ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from agentctl import errors
from agentctl.interface.requests import RunFilter, RunRequest
from agentctl.service.service import ServiceOperations
from tests.kit.conditions import wait_until
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer
from tests.kit.service import open_service, user
from tests.outages.proxy import Proxy, proxied

BOUNDS = "wait_seconds = 2\nstatement_seconds = 2"


def losing(way: Proxy, when: str) -> None:
    """Lose the next commit, or its response, and all later bytes."""

    async def lose() -> str:
        asyncio.get_running_loop().call_soon(way.hold)
        return when

    way.at_commit = lose


async def statuses(port: ServiceOperations, session_id: str) -> list[str]:
    """Return the status of each run of a session."""
    page = (await port.runs.list(RunFilter(session_id=session_id))).value
    return [run["status"] for run in page["data"]]


@pytest.mark.parametrize(
    ("when", "key", "found"),
    [("after", None, ["CANCELLED"]), ("after", "a-key", ["COMPLETED"]), ("before", None, [])],
)
async def test_a_run_with_an_unknown_outcome(
    tmp_path: Path,
    model_endpoint: ModelEndpoint,
    server: PostgresServer,
    when: str,
    key: str | None,
    found: list[str],
) -> None:
    async with proxied(server.socket) as way:
        databases = {
            name: f'url = "{way.url}"\nsearch_path = "{name}_{uuid4().hex}"\n{BOUNDS}'
            for name in ("main", "second")
        }
        deployment = create_deployment(tmp_path, model_endpoint.base_url, databases=databases)
        async with open_service(deployment) as service:
            port = user(service)
            await wait_until(lambda: completes_a_run(port))
            losing(way, when)
            request = RunRequest("x", session_id="s2", idempotency_key=key)
            with pytest.raises(errors.OutcomeUnknown):
                await port.runs.create("agent", "echo", request)
            way.release()
            await wait_until(lambda: answers(port))
            await wait_until(lambda: are(port, "s2", found))
            if key is not None:
                again = (await port.runs.create("agent", "echo", request)).value
                assert (again["status"], again["content"]) == ("COMPLETED", "x")
            await asyncio.sleep(1.2 if not found else 0)
            assert await statuses(port, "s2") == found


async def completes_a_run(port: ServiceOperations) -> bool:
    """Return False if a busy machine does not connect within the short limits."""
    try:
        await port.runs.create("agent", "echo", RunRequest("first", session_id="s1"))
    except errors.Unavailable:
        return False
    return True


async def answers(port: ServiceOperations) -> bool:
    try:
        await statuses(port, "s1")
    except errors.Unavailable:
        return False
    return True


async def are(port: ServiceOperations, session_id: str, wanted: list[str]) -> bool:
    try:
        return await statuses(port, session_id) == wanted
    except errors.Unavailable:
        return False
