"""AgentOS: its clients, its servers and its databases (docs/agentos.md).

`mapping` has the fields of both sides. `server` serves clients of AgentOS, `remote` uses its
servers, `database` reads its databases, and `imports` copies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.extensions import AddedCommand, AddedRoute, DatabaseLayout, Extension

if TYPE_CHECKING:
    from agentctl.config.settings import Database, Settings
    from agentctl.interop.agentos.database.operations import AgentOSDatabase
    from agentctl.interop.agentos.remote.operations import AgentOSOperations
    from agentctl.remote.connection import Connection
    from agentctl.server.routing import Operation


def _adapt_operations(operations: list[Operation], settings: Settings) -> list[Operation] | None:
    if settings.server.compatibility != "agentos":
        return None
    from agentctl.interop.agentos.server.adapter import adapt_operations

    return adapt_operations(operations, settings)


def _find_route(settings: Settings, method: str, path: str) -> AddedRoute | None:
    if settings.server.compatibility != "agentos":
        return None
    from agentctl.interop.agentos.routes import AGENTOS_ROUTES, TABLE

    match = TABLE.find(method, path)
    if match is None:
        return None
    operation, route = AGENTOS_ROUTES[match.operation]
    return AddedRoute(match._replace(operation=operation), route)


def _adapt_server(connection: Connection, info: Mapping[str, Any]) -> AgentOSOperations | None:
    from agentctl.interop.agentos.remote.server import recognize

    server = recognize(connection, info)
    if server is None:
        return None
    from agentctl.interop.agentos.remote.operations import AgentOSOperations

    return AgentOSOperations(connection, server)


def _build_entry(url: str, folder: Path) -> Database:
    from agentctl.interop.agentos.database.operations import build_database_entry

    return build_database_entry(url, folder)


def _open_database(
    entry: Database, table: str | None
) -> AbstractAsyncContextManager[AgentOSDatabase]:
    from agentctl.interop.agentos.database.operations import open_agentos_database

    return open_agentos_database(entry, table)


EXTENSION = Extension(
    "agentos",
    product="AgentOS",
    commands=(AddedCommand("db import", "agentctl.interop.agentos.command:import_database"),),
    adapt_operations=_adapt_operations,
    find_route=_find_route,
    adapt_server=_adapt_server,
    databases=DatabaseLayout("agentos", _build_entry, _open_database),
)
