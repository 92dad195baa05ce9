"""Two servers on one PostgreSQL. Each can be killed and started again on the same port."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from tests.deployment import ADMIN, Deployment, create_deployment
from tests.endpoint import start_endpoint
from tests.postgres_server import PostgresServer, run_postgres_server
from tests.process import ServerProcess, start_server

__all__ = ["Cluster", "Server", "start_cluster"]

SCHEMA = "chaos"

DATABASE = 'url = "{url}"\nsearch_path = "{schema}"'


class Server:
    """A server with its own folder; both servers have the same keys.

    Attributes:
        url: the URL, the same after a restart; empty before the first start.
        logs: the log file of each start.
    """

    def __init__(self, name: str, deployment: Deployment) -> None:
        self.name = name
        self.deployment = deployment
        self.url = ""
        self.logs = list[Path]()
        self._context = contextlib.ExitStack()
        self._running: ServerProcess | None = None

    @property
    def is_running(self) -> bool:
        """True from the end of `start` until `kill` or `stop`."""
        return self._running is not None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process of the running server."""
        assert self._running is not None
        return self._running.process

    def start(self) -> None:
        """Start the server and wait until it listens."""
        port = self.url.rpartition(":")[2] or "0"
        log = self.deployment.folder / f"{self.name}-{len(self.logs) + 1}.log"
        self.logs.append(log)
        options = ("--config", str(self.deployment.path), "--port", port)
        self._running = self._context.enter_context(start_server(*options, log=log))
        self.url = self._running.url

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._running = None
        self._context.close()

    def stop(self) -> None:
        """Stop the server with SIGTERM; it must exit with code 0."""
        self._running = None
        self._context.close()


@dataclass
class Cluster:
    """Two servers, their database, and a token for an administrator."""

    postgres: PostgresServer
    servers: list[Server]
    token: str

    async def crash_database(self, seconds: float) -> None:
        """Crash the database and start it again after `seconds`."""
        await asyncio.to_thread(self.postgres.stop)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.postgres.start)

    async def rows(self, sql: str) -> list[asyncpg.Record]:
        """Query the database directly."""
        connection = await asyncpg.connect(
            self.postgres.url, server_settings={"search_path": SCHEMA}
        )
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()


@contextlib.asynccontextmanager
async def start_cluster(*, durable: bool) -> AsyncIterator[Cluster]:
    """Start the database and both servers; stop them at the end of the block.

    Args:
        durable: True if the database flushes commits to disk.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentctl-chaos-"))
    endpoint = start_endpoint()
    try:
        with run_postgres_server(durable=durable) as postgres:
            servers = _create_servers(folder, endpoint.base_url, postgres.url)
            token = servers[0].deployment.token("me", ADMIN, seconds=7_200)
            try:
                for server in servers:
                    await asyncio.to_thread(server.start)
                yield Cluster(postgres, servers, token)
                for server in servers:
                    await asyncio.to_thread(server.stop)
            finally:
                for server in servers:
                    if server.is_running:
                        server.kill()
    finally:
        endpoint.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _create_servers(folder: Path, model_url: str, database_url: str) -> list[Server]:
    databases = {
        "main": DATABASE.format(url=database_url, schema=SCHEMA),
        "second": DATABASE.format(url=database_url, schema=f"{SCHEMA}_second"),
    }
    for name in ("a", "b"):
        (folder / name).mkdir()
    limits = "[limits]\nconcurrent_runs = 1000\n"
    deployment = create_deployment(folder / "a", model_url, extra=limits, databases=databases)
    shutil.copytree(folder / "a", folder / "b", dirs_exist_ok=True)
    return [Server("a", deployment), Server("b", Deployment(folder / "b"))]
