"""The table `[agui]`, and the routes of the face: one for each kind of component."""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.interop.routes import list_routes

PREFIX = "/agui"

ROUTES = list_routes("agui", PREFIX, {"run": ("POST", "", "create_run")})


@dataclass(frozen=True, slots=True)
class AgUi:
    """The table `[agui]`: agents, teams and workflows for clients of AG-UI (docs/agui.md)."""

    enabled: bool = False
