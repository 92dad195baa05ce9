"""Two servers on one PostgreSQL, each of which can be killed and started again where it was."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from tests.deployment import ADMIN, Deployment, create_deployment
from tests.endpoint import start_endpoint
from tests.own_postgres import OwnPostgres, own_postgres
from tests.process import ServerProcess, start_server

__all__ = ["Cluster", "Server", "start_cluster"]

SCHEMA = "chaos"

DATABASES = 'url = "{url}"\nsearch_path = "{schema}"'


class Server:
    """One server: a folder of its own, the keys of both, one port for all its lives."""

    def __init__(self, name: str, deployment: Deployment) -> None:
        self.name = name
        self.deployment = deployment
        self.lives = 0
        self.url = ""
        self.said = list[Path]()
        self._running = contextlib.ExitStack()
        self._served: ServerProcess | None = None

    @property
    def up(self) -> bool:
        """Whether it is there to be asked."""
        return self._served is not None

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The one that serves, if there is one."""
        return None if self._served is None else self._served.process

    def start(self) -> None:
        """Returns when it listens."""
        self.lives += 1
        port = self.url.rpartition(":")[2] or "0"
        log = self.deployment.folder / f"{self.name}-{self.lives}.log"
        self.said.append(log)
        options = ("--config", str(self.deployment.path), "--port", port)
        self._served = self._running.enter_context(start_server(*options, log=log))
        self.url = self._served.url

    def kill(self) -> None:
        """As kill -9 does."""
        served, self._served = self._served, None
        assert served is not None
        served.process.kill()
        served.process.wait()
        self._running.close()

    def stop(self) -> None:
        """As SIGTERM does; it must end without a complaint."""
        self._served = None
        self._running.close()


@dataclass
class Cluster:
    """What the trouble is made on.

    Attributes:
        returned_at: when the database was there again after its last crash.
    """

    postgres: OwnPostgres
    servers: list[Server]
    token: str
    returned_at: float = field(default_factory=time.monotonic)

    async def crash_database(self, seconds: float) -> None:
        """Crash it and have it back after a while."""
        await asyncio.to_thread(self.postgres.stop)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.postgres.start)
        self.returned_at = time.monotonic()

    async def rows(self, sql: str) -> list[asyncpg.Record]:
        """What the database says itself."""
        connection = await asyncpg.connect(
            self.postgres.url, server_settings={"search_path": SCHEMA}
        )
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()


@contextlib.asynccontextmanager
async def start_cluster(*, durable: bool) -> AsyncIterator[Cluster]:
    """Both servers, listening.

    Args:
        durable: whether the database writes to the disk what it acknowledges.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentctl-chaos-"))
    endpoint = start_endpoint()
    try:
        with own_postgres(durable=durable) as postgres:
            servers = _servers(folder, endpoint.base_url, postgres.url)
            token = servers[0].deployment.token("me", ADMIN, seconds=7_200)
            try:
                for server in servers:
                    await asyncio.to_thread(server.start)
                yield Cluster(postgres, servers, token)
                for server in servers:
                    await asyncio.to_thread(server.stop)
            finally:
                for server in servers:
                    if server.up:
                        server.kill()
    finally:
        endpoint.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _servers(folder: Path, model_url: str, database_url: str) -> list[Server]:
    place = DATABASES.format(url=database_url, schema=SCHEMA)
    second = DATABASES.format(url=database_url, schema=f"{SCHEMA}_second")
    for name in ("a", "b"):
        (folder / name).mkdir()
    databases = {"main": place, "second": second}
    limits = "[limits]\nconcurrent_runs = 1000\n"
    deployment = create_deployment(folder / "a", model_url, extra=limits, databases=databases)
    shutil.copytree(folder / "a", folder / "b", dirs_exist_ok=True)
    return [Server("a", deployment), Server("b", Deployment(folder / "b"))]
