"""The operations of the HTTP interface, one module for each noun (docs/contract.md "Routes")."""

from __future__ import annotations

from agentctl.server.routes import (
    accounts,
    audit,
    authorization,
    components,
    console,
    memories,
    runs,
    sessions,
    system,
)
from agentctl.server.routing import Operation

__all__ = ["build_all_operations"]


def build_all_operations() -> list[Operation]:
    """Return all operations except those of the documentation pages."""
    return [
        *system.build_operations(),
        *console.build_operations(),
        *authorization.build_operations(),
        *components.build_operations(),
        *sessions.build_operations(),
        *runs.build_operations(),
        *memories.build_operations(),
        *accounts.build_operations(),
        *audit.build_operations(),
    ]
