"""Requests whose client leaves, or whose server stops, while PostgreSQL commits their change."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import httpx2
import orjson
import pytest

from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer
from tests.kit.process import ServerProcess, serve_config

LIMIT = "[limits]\nconcurrent_runs = 2\n"

LINED = '[[agents]]\nid = "lined"\nmodel = "echo"\non_busy = "enqueue"\n'

WAITING = "SELECT count(*) FROM pg_locks WHERE relation = 'sessions'::regclass AND NOT granted"


class Place:
    """A deployment on a separate schema, and its lock on the sessions."""

    def __init__(
        self, folder: Path, endpoint: ModelEndpoint, server: PostgresServer, extra: str = ""
    ) -> None:
        self._url = server.url
        self._schema = f"late_{uuid4().hex}"
        lines = f'url = "{self._url}"\nsearch_path = "{self._schema}"\nstatement_seconds = 60'
        databases = {"main": lines, "second": 'url = "sqlite:///second.db"'}
        self.deployment: Deployment = create_deployment(
            folder, endpoint.base_url, extra=extra, databases=databases
        )

    @contextlib.asynccontextmanager
    async def locked(self) -> AsyncIterator[asyncpg.Connection]:
        settings = {"search_path": self._schema}
        connection = await asyncpg.connect(self._url, server_settings=settings)
        try:
            async with connection.transaction():
                await connection.execute("LOCK TABLE sessions IN EXCLUSIVE MODE")
                yield connection
        finally:
            await connection.close()

    def client(self, served: ServerProcess) -> httpx2.AsyncClient:
        headers = self.deployment.bearer("me", ADMIN)
        return httpx2.AsyncClient(base_url=served.url, headers=headers, timeout=PATIENCE)

    async def leave(
        self,
        served: ServerProcess,
        connection: asyncpg.Connection,
        agent_id: str,
        body: dict[str, object],
    ) -> None:
        """Start a run, and leave while the lock delays its commit."""
        data = orjson.dumps(body)
        fields = {
            **self.deployment.bearer("me", ADMIN),
            "Host": "x",
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
        }
        lines = [f"POST /agents/{agent_id}/runs HTTP/1.1", *map(": ".join, fields.items())]
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        own = writer.get_extra_info("sockname")[1]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await wait_for_commit(connection)
        writer.close()
        await wait_until(lambda: not is_open(served.port, own))


async def wait_for_commit(connection: asyncpg.Connection) -> None:
    """Wait until a statement of a server waits for the lock."""
    async with asyncio.timeout(PATIENCE):
        while not await connection.fetchval(WAITING):
            await asyncio.sleep(0.05)


def is_open(port: int, remote_port: int) -> bool:
    """Return True if a process of this machine has this side of a connection."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = f":{port:04X}", f":{remote_port:04X}"
    return any((line[1][-5:], line[2][-5:]) == ends for line in lines)


@pytest.mark.parametrize("stream", [False, True])
async def test_queued_run_is_cancelled_if_its_client_left_during_its_commit(
    tmp_path: Path, model_endpoint: ModelEndpoint, server: PostgresServer, stream: bool
) -> None:
    place = Place(tmp_path, model_endpoint, server, LINED)
    with serve_config(place.deployment.path) as served:
        async with place.client(served) as client:
            body = {"message": "first", "session_id": "s", "background": True, "stream": False}
            first = (await client.post("/agents/hang/runs", json=body)).json()
            async with place.locked() as connection:
                body = {"message": "left", "session_id": "s", "stream": stream}
                await place.leave(served, connection, "lined", body)

            async def find_left() -> list[str]:
                runs = (await client.get("/sessions/s/runs")).json()
                return [run["status"] for run in runs if run["input"] == "left"]

            async with asyncio.timeout(PATIENCE):
                while await find_left() in ([], ["PENDING"]):
                    # Its turn comes; it must not be executed.
                    path = f"/agents/hang/runs/{first['run_id']}/cancel"
                    await client.post(path, params={"session_id": "s"})
            assert await find_left() == ["CANCELLED"]
    assert '"left"' not in orjson.dumps(model_endpoint.requests("echo")).decode()


async def test_run_whose_client_left_during_its_commit_keeps_its_slot(
    tmp_path: Path, model_endpoint: ModelEndpoint, server: PostgresServer
) -> None:
    place = Place(tmp_path, model_endpoint, server, LIMIT)
    with serve_config(place.deployment.path) as served:
        async with place.client(served) as client:
            body = {"message": "x", "stream": False, "background": True}
            assert (await client.post("/agents/hang/runs", json=body)).status_code == 202
            async with place.locked() as connection:
                await place.leave(served, connection, "hang", body)
                waiting = {"message": "x", "stream": False}
                refused = await client.post("/agents/echo/runs", json=waiting, timeout=PATIENCE)
                assert refused.status_code == 429, refused.text
            async with asyncio.timeout(PATIENCE):
                while len((await client.get("/runs")).json()["data"]) < 2:
                    await asyncio.sleep(0.05)
            assert (await client.post("/agents/echo/runs", json=waiting)).status_code == 429


REQUESTS: list[tuple[str, str, dict[str, object] | None]] = [
    ("POST", "/agents/echo/runs", {"message": "x", "stream": False}),
    ("POST", "/agents/echo/runs", {"message": "x", "stream": False, "background": True}),
    ("DELETE", "/sessions/s", None),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
async def test_request_that_the_shutdown_interrupts_has_an_unknown_outcome(
    tmp_path: Path,
    model_endpoint: ModelEndpoint,
    server: PostgresServer,
    method: str,
    path: str,
    body: dict[str, object] | None,
) -> None:
    place = Place(tmp_path, model_endpoint, server)
    with serve_config(place.deployment.path) as served:
        async with place.client(served) as client:
            first = {"message": "first", "session_id": "s", "stream": False}
            assert (await client.post("/agents/echo/runs", json=first)).status_code == 200
            async with place.locked() as connection:
                sent = asyncio.create_task(client.request(method, path, json=body))
                await wait_for_commit(connection)
                served.process.send_signal(signal.SIGTERM)
                answer = await sent
        assert answer.status_code == 503, answer.text
        assert answer.json()["error_code"] == "OUTCOME_UNKNOWN"
        assert await asyncio.to_thread(served.process.wait, 60) == 0
        assert "Traceback" not in served.log_text
    if body is None:
        return
    with serve_config(place.deployment.path) as served:
        async with place.client(served) as client:
            found = await client.get(f"/runs/{answer.json()['run_id']}")
            assert found.status_code == 404 or found.json()["status"] == "ERROR", found.text
