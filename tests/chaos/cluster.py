"""The servers of an experiment and their database: PostgreSQL, also with PgBouncer, or SQLite.

A server can be killed and started again on the same port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import apsw
import asyncpg

from tests.deployment import ADMIN, Deployment, create_deployment
from tests.endpoint import ModelEndpoint, start_endpoint
from tests.poolers.pgbouncer import MISSING, PgBouncer, find_pgbouncer, running_pgbouncer
from tests.postgres_server import PostgresServer, list_children, run_postgres_server
from tests.process import ServerProcess, serve_config
from tests.releases import NEW, Program, build_program, extract_last_release

__all__ = ["Cluster", "Engine", "PostgresCluster", "Server", "SqliteCluster", "start_cluster"]

Engine = Literal["postgresql", "pgbouncer", "mixed", "sqlite"]
"""`mixed` is PostgreSQL with a server of this version and one of the last release."""

SCHEMA = "chaos"

SCHEMAS = (SCHEMA, f"{SCHEMA}_second")

WORKERS = 3
"""Worker processes of the server on SQLite."""

LIMITS = "[limits]\nconcurrent_runs = 1000\n"

DATABASE = 'url = "{url}"\nsearch_path = "{schema}"'


class Server:
    """A server with its own folder; all servers have the same keys.

    Args:
        options: options of `agentctl serve`.
        program: the version of the server.
        variables: further environment variables of the server.

    Attributes:
        variables: further environment variables of the next start.
        url: the URL, the same after a restart; empty before the first start.
        logs: the log file of each start.
    """

    def __init__(
        self,
        name: str,
        deployment: Deployment,
        *options: str,
        program: Program = NEW,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.deployment = deployment
        self._options = options
        self._program = program
        self.variables = {**program.variables, **(variables or {})}
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

    @property
    def workers(self) -> list[int]:
        """The process ids of its workers; its own if it is one process.

        Children only: a pid of the database may belong to a process of another program by now.
        """
        if self._running is None:
            return []
        pid = self.process.pid
        return list_children(pid) if "--workers" in self._options else [pid]

    def start(self) -> None:
        """Start the server and wait until it listens."""
        port = self.url.rpartition(":")[2] or "0"
        name = f"{self.name}-{len(self.logs) + 1}.log"
        self.logs.append(self.deployment.folder / name)
        options = ("--port", port, *self._options)
        command = None if self._program is NEW else self._program.command
        kind: dict[str, Any] = {"variables": self.variables, "program": command}
        running = serve_config(self.deployment.path, *options, log=name, **kind)
        self._running = self._context.enter_context(running)
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
class Cluster(ABC):
    """The servers, a token for an administrator, and the model endpoint of the servers."""

    servers: list[Server]
    token: str
    endpoint: ModelEndpoint | None = field(default=None, kw_only=True)

    def live_workers(self) -> list[int]:
        """Return the process ids of the workers of all servers."""
        return [pid for server in self.servers for pid in server.workers]

    @abstractmethod
    async def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Query the database directly."""


@dataclass
class PostgresCluster(Cluster):
    """Two servers on one PostgreSQL, perhaps with PgBouncer."""

    postgres: PostgresServer
    pooler: PgBouncer | None = None

    async def crash_database(self, seconds: float, *, kill: bool = False) -> None:
        """Crash the database and start it again after `seconds`.

        Args:
            kill: kill its processes with SIGKILL instead of an immediate stop.
        """
        await asyncio.to_thread(self.postgres.kill if kill else self.postgres.stop)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.postgres.start)

    async def restart_pooler(self, seconds: float) -> None:
        """Kill PgBouncer and start it again after `seconds`."""
        assert self.pooler is not None
        await asyncio.to_thread(self.pooler.stop)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(self.pooler.start)

    async def cut_connections(self) -> None:
        """Close all connections of the servers to the database."""
        await self.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'agentctl'"
        )

    async def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        connection = await asyncpg.connect(
            self.postgres.url, server_settings={"search_path": SCHEMA}
        )
        try:
            rows: Sequence[Sequence[Any]] = await connection.fetch(sql)
            return rows
        finally:
            await connection.close()


@dataclass
class SqliteCluster(Cluster):
    """One server with several worker processes on one file."""

    file: Path

    async def lock_database(self, seconds: float) -> None:
        """Hold the write lock of the database for `seconds`."""
        await asyncio.to_thread(self._begin_and_wait, seconds)

    async def stop_worker(self, pid: int, seconds: float) -> None:
        """Stop a worker with SIGSTOP and continue it after `seconds`."""
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        return await asyncio.to_thread(self._query, sql)

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(self._connect(apsw.SQLITE_OPEN_READONLY)) as connection:
            return connection.execute(sql).fetchall()

    def _begin_and_wait(self, seconds: float) -> None:
        with contextlib.closing(self._connect(apsw.SQLITE_OPEN_READWRITE)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            threading.Event().wait(seconds)
            connection.execute("ROLLBACK")

    def _connect(self, flags: int) -> apsw.Connection:
        connection = apsw.Connection(str(self.file), flags=flags)
        connection.set_busy_timeout(30_000)
        return connection


@contextlib.asynccontextmanager
async def start_cluster(
    engine: Engine,
    *,
    durable: bool,
    workers: int = 0,
    extra: str = "",
    files: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> AsyncIterator[Cluster]:
    """Start the database and the servers; stop them at the end of the block.

    Args:
        durable: True if PostgreSQL flushes commits to disk. SQLite always does.
        workers: worker processes of each server on PostgreSQL; 0 for one process.
        extra: TOML to append to the configuration, with `{url}` for the model endpoint.
        files: texts of files in the folder of the configuration, by name.
        folder: the parent of the folder of PostgreSQL.
    """
    disk = folder
    folder = Path(tempfile.mkdtemp(prefix="agentctl-chaos-"))
    endpoint = start_endpoint()
    with contextlib.ExitStack() as context:
        context.callback(shutil.rmtree, folder, ignore_errors=True)
        context.callback(endpoint.stop)
        extra = extra.replace("{url}", endpoint.base_url)
        cluster: Cluster
        if engine == "sqlite":
            cluster = _create_sqlite_cluster(folder, endpoint.base_url, extra)
        else:
            postgres = context.enter_context(run_postgres_server(durable=durable, parent=disk))
            pooler = None
            if engine == "pgbouncer":
                program = find_pgbouncer()
                assert program is not None, MISSING
                await _create_users(postgres)
                settings = ("server_login_retry = 1",)
                pooler = context.enter_context(
                    running_pgbouncer(program, postgres.url, *settings, users=SCHEMAS)
                )
            cluster = _create_postgres_cluster(
                folder, endpoint.base_url, postgres, pooler, extra, workers
            )
            if engine == "mixed":
                source = extract_last_release(folder)
                assert source is not None, "needs a clone with the commit of the last release"
                program = build_program(source)
                cluster.servers[1] = Server("b", Deployment(folder / "b"), program=program)
                for each in (program, NEW):
                    done = each.run(cluster.servers[0].deployment, "db", "migrate")
                    assert done.returncode == 0, done.stderr
        cluster.endpoint = endpoint
        for server in cluster.servers:
            for name, text in (files or {}).items():
                (server.deployment.folder / name).write_text(text)
        try:
            for server in cluster.servers:
                await asyncio.to_thread(server.start)
            yield cluster
            for server in cluster.servers:
                await asyncio.to_thread(server.stop)
        finally:
            for server in cluster.servers:
                if server.is_running:
                    server.kill()


def _create_sqlite_cluster(folder: Path, model_url: str, extra: str) -> SqliteCluster:
    deployment = create_deployment(folder, model_url, extra=LIMITS + extra)
    server = Server("a", deployment, "--workers", str(WORKERS))
    return SqliteCluster([server], _mint_token(deployment), folder / "main.db")


async def _create_users(postgres: PostgresServer) -> None:
    """Create a user for each schema, because PgBouncer drops the `search_path` of connections."""
    connection = await asyncpg.connect(postgres.url)
    for schema in SCHEMAS:
        await connection.execute(f"CREATE ROLE {schema} SUPERUSER LOGIN")
        await connection.execute(f"ALTER ROLE {schema} SET search_path = '{schema}'")
    await connection.close()


def _create_postgres_cluster(
    folder: Path,
    model_url: str,
    postgres: PostgresServer,
    pooler: PgBouncer | None,
    extra: str,
    workers: int,
) -> PostgresCluster:
    databases = {}
    for name, schema in zip(("main", "second"), SCHEMAS, strict=True):
        databases[name] = DATABASE.format(url=postgres.url, schema=schema)
        if pooler is not None:
            direct, pooled = (
                url.replace("postgres@", f"{schema}@") for url in (postgres.url, pooler.url)
            )
            text = DATABASE.format(url=pooled, schema=schema)
            databases[name] = f'{text}\nlisten_url = "{direct}"'
    for name in ("a", "b"):
        (folder / name).mkdir()
    deployment = create_deployment(
        folder / "a", model_url, extra=LIMITS + extra, databases=databases
    )
    shutil.copytree(folder / "a", folder / "b", dirs_exist_ok=True)
    options = ("--workers", str(workers)) if workers else ()
    deployments = {"a": deployment, "b": Deployment(folder / "b")}
    servers = [Server(name, each, *options) for name, each in deployments.items()]
    return PostgresCluster(servers, _mint_token(deployment), postgres, pooler)


def _mint_token(deployment: Deployment) -> str:
    return deployment.token("me", ADMIN, seconds=7_200)
