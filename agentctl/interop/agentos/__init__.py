"""The interface for clients of AgentOS 2.7.2 and 3.1 (docs/agentos.md).

`server` has its endpoints, `mapping` the records in the shapes of AgentOS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentctl.extensions import AddedRoute, Extension

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
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


EXTENSION = Extension("agentos", adapt_operations=_adapt_operations, find_route=_find_route)
