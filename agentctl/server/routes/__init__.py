"""The operations of the interface, one module a noun (contract.md 1)."""

from __future__ import annotations

from agentctl.server.routes import (
    accounts,
    audit,
    authorization,
    components,
    runs,
    sessions,
    system,
)
from agentctl.server.routing import Operation

__all__ = ["all_operations"]


def all_operations() -> list[Operation]:
    """Every operation but those that show the documentation."""
    return [
        *system.operations(),
        *authorization.operations(),
        *components.operations(),
        *sessions.operations(),
        *runs.operations(),
        *accounts.operations(),
        *audit.operations(),
    ]
