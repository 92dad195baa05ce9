"""Where the databases of a world are: in files, or in schemas of a PostgreSQL server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import apsw
import asyncpg

from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.config.settings import Database as Entry
from tests.deployment import FILES, Deployment
from tests.postgres import postgres_schemas

__all__ = ["Places", "empty"]

_TABLES = ("run_events", "runs", "sessions", "idempotency", "service_accounts", "audit_log")
"""All that a test fills; workers are of the server, which goes on."""


@dataclass(frozen=True)
class Places:
    """One engine. `url` of its server; None: SQLite, which has none."""

    url: str | None

    @property
    def engine(self) -> str:
        return "sqlite" if self.url is None else "postgres"

    @contextlib.contextmanager
    def databases(self) -> Iterator[Mapping[str, str]]:
        """The lines of the two databases of one world, as `make_world` takes them."""
        if self.url is None:
            yield FILES
        else:
            with postgres_schemas(self.url) as lines:
                yield lines


def empty(deployment: Deployment) -> None:
    """Remove all rows that a test may have left, while a server has the databases open."""
    for entry in deployment.settings.databases:
        if is_sqlite_url(entry.url):
            _empty_file(entry)
        else:
            asyncio.run(_empty_schema(entry))


def _empty_file(entry: Entry) -> None:
    path = sqlite_path(entry.url)
    if not path.exists():
        return
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(5_000)
        with connection:
            for table in (*_TABLES, "sqlite_sequence"):
                connection.execute(f"DELETE FROM {table}")


async def _empty_schema(entry: Entry) -> None:
    connection = await asyncpg.connect(
        entry.url, server_settings={"search_path": entry.search_path}
    )
    try:
        there = await connection.fetchval("SELECT to_regclass('sessions')")
        if there is not None:
            await connection.execute(f"TRUNCATE {', '.join(_TABLES)} RESTART IDENTITY")
    finally:
        await connection.close()
