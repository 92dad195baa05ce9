"""The world of a scenario: servers, their database, the model endpoint, and the ledger of tools."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import apsw
import asyncpg

from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint, start_endpoint
from tests.kit.postgres_server import PostgresServer, run_postgres_server
from tests.kit.releases import NEW, build_program, extract_last_release
from tests.lab import ledger
from tests.lab.ledger import Ledger
from tests.lab.servers import Server
from tests.poolers.pgbouncer import MISSING, PgBouncer, find_pgbouncer, running_pgbouncer

__all__ = ["DEPLOYMENTS", "LIMITS", "TOKEN_SECONDS", "Layout", "World", "open_world"]


class Layout(NamedTuple):
    """The servers of a world, and their database."""

    database: Literal["postgresql", "sqlite"]

    servers: int = 1
    """Each has its own folder."""

    workers: int = 0
    """Worker processes of each server; 0 for a server that is one process."""

    has_pooler: bool = False
    """True if the servers reach PostgreSQL through a PgBouncer."""

    has_last_release: bool = False
    """True if the second server is of the last release."""


DEPLOYMENTS: dict[str, Layout] = {
    "sqlite": Layout("sqlite", workers=3),
    "postgresql": Layout("postgresql", servers=2),
    "postgresql, workers": Layout("postgresql", servers=2, workers=3),
    "pgbouncer": Layout("postgresql", servers=2, has_pooler=True),
    "mixed": Layout("postgresql", servers=2, has_last_release=True),
    "one on sqlite": Layout("sqlite"),
    "two on sqlite": Layout("sqlite", servers=2),
    "one on postgresql": Layout("postgresql"),
    "two workers on sqlite": Layout("sqlite", workers=2),
    "two workers on postgresql": Layout("postgresql", workers=2),
    "three on postgresql": Layout("postgresql", servers=3),
}
"""The deployments of scenarios."""

LIMITS = "[limits]\nconcurrent_runs = 1000\n"

TOKEN_SECONDS = 86_400


@dataclass
class World:
    """Running servers with all that is around them."""

    servers: list[Server]

    endpoint: ModelEndpoint

    ledger: Ledger

    dice: Random
    """Chooses for disturbances, with the seed of the scenario."""

    schema: str = ""
    """The schema of the main database; empty on SQLite."""

    file: Path | None = None
    """The file of the main database; None on PostgreSQL."""

    postgres: PostgresServer | None = None

    pooler: PgBouncer | None = None

    _connection: asyncpg.Connection[Any] | None = None

    _querying: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def headers(self) -> dict[str, str]:
        """The header fields of an administrator."""
        return self.servers[0].deployment.bearer("me", ADMIN, seconds=TOKEN_SECONDS)

    def list_running(self) -> list[Server]:
        """Return the servers that run, as a load balancer knows them; all if none does."""
        return [server for server in self.servers if server.is_alive] or self.servers

    def list_workers(self) -> list[int]:
        """Return the process ids of the workers of all servers."""
        return [pid for server in self.servers for pid in server.workers]

    async def list_ready_workers(self) -> list[int]:
        """Return the workers that have registered; none while the database does not answer.

        A server delays the start of a worker whose predecessor never was ready.
        """
        live = self.list_workers()
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            ready = {row[0] for row in await self.rows("SELECT pid FROM workers")}
            # A pid of the database alone may be that of another program by now.
            return [pid for pid in live if pid in ready]
        return []

    async def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Query the main database directly."""
        if self.file is not None:
            return await asyncio.to_thread(self._query_file, sql)

        async with self._querying:
            try:
                return await self._fetch(sql)
            except (OSError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError):
                # A crash of the database has ended the connection.
                self._connection = None
                return await self._fetch(sql)

    async def connect(self) -> asyncpg.Connection[Any]:
        """Open another connection to PostgreSQL."""
        assert self.postgres is not None
        settings = {"search_path": self.schema}
        return await asyncpg.connect(self.postgres.url, server_settings=settings)

    def open_file(self, flags: int = apsw.SQLITE_OPEN_READWRITE) -> apsw.Connection:
        """Open the file of the main database, as another program does."""
        connection = apsw.Connection(str(self.file), flags=flags)
        connection.set_busy_timeout(30_000)
        return connection

    def read_logs(self) -> list[str]:
        """Return the logs of all starts of all servers."""
        return [log.read_text() for server in self.servers for log in server.logs]

    async def _fetch(self, sql: str) -> Sequence[Sequence[Any]]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self.connect()
        rows: Sequence[Sequence[Any]] = await self._connection.fetch(sql)
        return rows

    def _query_file(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(self.open_file(apsw.SQLITE_OPEN_READONLY)) as connection:
            return connection.execute(sql).fetchall()

    async def _close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


@contextlib.asynccontextmanager
async def open_world(
    deployment: str,
    *,
    config: str | Callable[[World], str] = "",
    files: Mapping[str, str] | None = None,
    server: str = "",
    database: str = "",
    limits: str = LIMITS,
    variables: Mapping[str, str] | None = None,
    python: str | None = None,
    endpoint: str = "tests.kit.model_server",
    postgres: PostgresServer | None = None,
    is_flushed: bool = False,
    postgres_settings: Sequence[str] = (),
    disk: Path | None = None,
    seed: int = 5,
) -> AsyncIterator[World]:
    """Start the endpoint, the database and the servers; stop them at the end of the block.

    Args:
        deployment: one of `DEPLOYMENTS`.
        config: TOML to append to the configuration, with `{url}` for the model endpoint; or a
            function that builds it for the world, whose servers are still missing.
        files: texts of files in the folders of the servers, by name.
        server: settings to append to `[server]`.
        database: settings to append to those of the main database.
        limits: the table `[limits]`.
        variables: further environment variables of the servers and of the endpoint, with `{url}`
            for the endpoint in those of the servers.
        python: the interpreter of the servers, if it is that of another environment.
        endpoint: the module of the model endpoint.
        postgres: a PostgreSQL that runs already; by default a new one is started.
        is_flushed: True if PostgreSQL flushes commits to disk. SQLite always does.
        postgres_settings: settings of the new PostgreSQL, as `NAME=VALUE`.
        disk: the parent of the folder of the new PostgreSQL.
        seed: of the choices of disturbances.
    """
    layout = DEPLOYMENTS[deployment]
    # With a link in its path, the folder would have two names.
    folder = Path(tempfile.mkdtemp(prefix="agentctl-lab-")).resolve()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        path = folder / "ledger.jsonl"
        given = {**(variables or {}), ledger.VARIABLE: str(path)}
        models = start_endpoint(endpoint, given)
        stack.callback(models.stop)
        given = {name: value.replace("{url}", models.base_url) for name, value in given.items()}
        world = World([], models, Ledger(path), Random(seed))
        # The servers have folders of their own, and share the files.
        files_of = {name: folder / "a" / f"{name}.db" for name in ("main", "second")}
        databases = {name: f'url = "sqlite:///{path}"' for name, path in files_of.items()}
        if layout.database == "postgresql":
            if postgres is None:
                running = run_postgres_server(
                    durable=is_flushed, settings=postgres_settings, parent=disk
                )
                postgres = stack.enter_context(running)
            world.postgres = postgres
            world.schema = f"lab_{uuid4().hex}"
            databases = await _place_databases(world, layout, stack)
        else:
            world.file = files_of["main"]
        databases["main"] += f"\n{database}"

        pattern = folder / "a"
        pattern.mkdir()
        text = config(world) if callable(config) else config
        extra = limits + text.replace("{url}", models.base_url)
        create_deployment(pattern, models.base_url, extra=extra, server=server, databases=databases)
        source = Path(ledger.__file__).read_text()
        for name, text in {"lab_ledger.py": source, **(files or {})}.items():
            (pattern / name).write_text(text)

        options = ("--workers", str(layout.workers)) if layout.workers else ()
        for number in range(layout.servers):
            place = folder / "abc"[number]
            if number > 0:
                shutil.copytree(pattern, place)
            world.servers.append(
                Server("abc"[number], Deployment(place), *options, variables=given, python=python)
            )
        if layout.has_last_release:
            _replace_by_last_release(world, folder)

        try:
            for each in world.servers:
                await asyncio.to_thread(each.start)
            yield world
            for each in world.servers:
                await asyncio.to_thread(each.stop)
        finally:
            await world._close()
            for each in world.servers:
                if each.is_running:
                    each.kill()


async def _place_databases(
    world: World, layout: Layout, stack: contextlib.ExitStack
) -> dict[str, str]:
    """Return the settings of the databases, in schemas of their own."""
    assert world.postgres is not None
    url = world.postgres.url
    schemas = {"main": world.schema, "second": f"{world.schema}_second"}
    if not layout.has_pooler:
        return {
            name: f'url = "{url}"\nsearch_path = "{schema}"' for name, schema in schemas.items()
        }

    program = find_pgbouncer()
    assert program is not None, MISSING
    await _create_users(url, schemas.values())
    pooler = running_pgbouncer(
        program, url, "server_login_retry = 1", users=tuple(schemas.values())
    )
    world.pooler = stack.enter_context(pooler)
    databases: dict[str, str] = {}
    for name, schema in schemas.items():
        direct = url.replace("postgres@", f"{schema}@")
        pooled = world.pooler.url.replace("postgres@", f"{schema}@")
        databases[name] = f'url = "{pooled}"\nsearch_path = "{schema}"\nlisten_url = "{direct}"'
    return databases


async def _create_users(url: str, schemas: Any) -> None:
    """Create a user for each schema, because PgBouncer drops the `search_path` of connections."""
    connection = await asyncpg.connect(url)
    for schema in schemas:
        await connection.execute(f"CREATE ROLE {schema} SUPERUSER LOGIN")
        await connection.execute(f"ALTER ROLE {schema} SET search_path = '{schema}'")
    await connection.close()


def _replace_by_last_release(world: World, folder: Path) -> None:
    """Let the second server be of the last release; both versions migrate the database first."""
    source = extract_last_release(folder)
    assert source is not None, "needs a clone with the commit of the last release"
    program = build_program(source)
    new, old = world.servers
    world.servers[1] = Server("b", old.deployment, program=program, variables=old.variables)
    for each in (program, NEW):
        done = each.run(new.deployment, "db", "migrate")
        assert done.returncode == 0, done.stderr
