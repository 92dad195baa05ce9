"""Databases of a deployment: SQLite files, or schemas of a PostgreSQL server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import apsw

from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.config.settings import Database as Entry
from tests.kit.deployment import SQLITE_DATABASES, Deployment
from tests.kit.postgres import empty_schema, postgres_schemas

__all__ = ["Engine", "empty"]

_TABLES = (
    "search_texts", "approvals", "live_usage", "run_checkpoints", "run_events", "run_steps",
    "run_messages", "runs", "files", "sessions", "idempotency", "usage_ends", "usage_hourly",
    "usage_daily", "webhook_deliveries", "service_accounts", "memory_terms", "memories",
    "store_terms", "store_items", "audit_log", "halts", "budget_periods",
    "breaker_failures",
)  # fmt: skip
"""The tables that a test fills; `workers` belongs to the running server."""


@dataclass(frozen=True)
class Engine:
    """A database engine. `url` of the PostgreSQL server; None: SQLite."""

    url: str | None

    @property
    def name(self) -> str:
        return "sqlite" if self.url is None else "postgres"

    @contextlib.contextmanager
    def databases(self) -> Iterator[Mapping[str, str]]:
        """Yield the settings of the two databases of a deployment."""
        if self.url is None:
            yield SQLITE_DATABASES
        else:
            with postgres_schemas(self.url) as lines:
                yield lines


def empty(deployment: Deployment) -> None:
    """Delete the rows of a test while a server has the databases open."""
    for entry in deployment.settings.databases:
        if is_sqlite_url(entry.url):
            _empty_file(entry)
        else:
            # The running server has rows of these tables.
            asyncio.run(empty_schema(entry, "workers", "component_versions"))


def _empty_file(entry: Entry) -> None:
    path = sqlite_path(entry.url)
    if not path.exists():
        return
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(5_000)
        with connection:
            connection.execute("UPDATE sessions SET hold = NULL")
            for table in (*_TABLES, "sqlite_sequence"):
                connection.execute(f"DELETE FROM {table}")
