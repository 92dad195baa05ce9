"""Servers on one PostgreSQL database, each in a separate folder with the same keys."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import orjson

from agentctl.auth.keys.files import write_private_key
from agentctl.auth.keys.signing import build_public_jwks, generate_key
from agentctl.auth.tokens import mint
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.postgres_server import PostgresServer
from tests.lab.servers import Server
from tests.outages.proxy import ProxyApart, proxied_apart

__all__ = ["STATEMENT", "WAIT", "Pair", "running_pair"]

WAIT = 1
STATEMENT = 1
"""Seconds that the servers wait for a connection and for a statement."""

SCHEMAS = {"main": "pair", "second": "pair_second"}

JWKS = Path("keys") / "jwks.json"


@dataclass
class Pair:
    """Two servers: `a` uses the database through a proxy, `b` directly.

    Attributes:
        headers: request headers of an administrator.
    """

    postgres: PostgresServer
    way: ProxyApart
    a: Server
    b: Server
    headers: dict[str, str]

    @contextlib.asynccontextmanager
    async def third(self) -> AsyncIterator[Server]:
        """Start a third server, for tests that stop it."""
        folder = self.b.deployment.folder.parent / f"c{time.monotonic_ns()}"
        shutil.copytree(self.b.deployment.folder, folder)
        server = Server("c", Deployment(folder))
        await asyncio.to_thread(server.start)
        try:
            yield server
        finally:
            if server.is_running:
                await asyncio.to_thread(server.stop)

    @contextlib.asynccontextmanager
    async def client(
        self, server: Server, token: str | None = None
    ) -> AsyncIterator[httpx2.AsyncClient]:
        headers = self.headers if token is None else {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(
            base_url=server.url,
            headers=headers,
            timeout=PATIENCE,
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=1),
        ) as client:
            yield client

    def second_token(self) -> str:
        """Return a token that is signed with the key that only the JWKS file has."""
        settings = self.a.deployment.settings
        signing = replace(
            settings.signing, key_file=self.a.deployment.folder / "keys" / "second.pem"
        )
        lifetime = timedelta(minutes=10)
        return mint.mint_token(replace(settings, signing=signing), "me", [ADMIN], lifetime)

    def write_jwks(self, *keys: bytes) -> None:
        """Write the JWKS file of both servers."""
        for server in (self.a, self.b):
            _write_jwks(server.deployment.folder, *keys)

    async def rows(self, sql: str, *values: Any) -> list[asyncpg.Record]:
        """Return the rows of a query of the main database."""
        connection = await asyncpg.connect(
            self.postgres.url, server_settings={"search_path": SCHEMAS["main"]}
        )
        try:
            return await connection.fetch(sql, *values)
        finally:
            await connection.close()

    async def status(self, run_id: str) -> str:
        """Return the stored status of a run."""
        return str((await self.rows("SELECT status FROM runs WHERE run_id = $1", run_id))[0][0])


def _write_jwks(folder: Path, *keys: bytes) -> None:
    entries = [entry for key in keys for entry in build_public_jwks(key, "RS256")["keys"]]
    new = folder / "keys" / "new.json"
    new.write_bytes(orjson.dumps({"keys": entries}))
    new.replace(folder / JWKS)


@contextlib.contextmanager
def running_pair(model_url: str, postgres: PostgresServer) -> Iterator[Pair]:
    """Start both servers; stop them at the end."""
    folder = Path(tempfile.mkdtemp(prefix="agentctl-pair-"))
    try:
        with proxied_apart(postgres.socket) as way:
            b = _made(folder / "b", model_url, postgres.url)
            shutil.copytree(folder / "b", folder / "a")
            text = b.path.read_text().replace(postgres.url, way.url)
            (folder / "a" / "agentctl.toml").write_text(text)
            headers = {"Authorization": f"Bearer {b.token('me', ADMIN)}"}
            servers = Server("a", Deployment(folder / "a")), Server("b", b)
            try:
                for server in servers:
                    server.start()
                yield Pair(postgres, way, *servers, headers)
                for server in servers:
                    server.stop()
            finally:
                for server in servers:
                    if server.is_running:
                        server.kill()
    finally:
        shutil.rmtree(folder)


def _made(folder: Path, model_url: str, database_url: str) -> Deployment:
    folder.mkdir()
    bounds = f"wait_seconds = {WAIT}\nstatement_seconds = {STATEMENT}\npool_size = 4"
    databases = {
        name: f'url = "{database_url}"\nsearch_path = "{schema}"\n{bounds}'
        for name, schema in SCHEMAS.items()
    }
    deployment = create_deployment(folder, model_url, databases=databases)
    key_file = 'verification_key_files = ["keys/signing.pub.pem"]'
    text = deployment.path.read_text()
    deployment.path.write_text(text.replace(key_file, f'{key_file}\njwks_file = "{JWKS}"'))
    second = generate_key("RS256")
    write_private_key(folder / "keys" / "second.pem", second)
    _write_jwks(folder, second)
    return deployment
