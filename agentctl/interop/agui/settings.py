"""The table `[agui]`, and the routes of the face: one for each kind of component."""

from __future__ import annotations

from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import Route, RouteTable

PREFIX = "/agui"

ROUTE_KINDS: dict[str, ComponentKind] = {f"run_agui_{kind}": kind for kind in KINDS}
"""The kinds of component by the names of their routes."""

TABLE = RouteTable(
    {
        name: Route("POST", f"{PREFIX}/{KINDS[kind].path}/{{component_id}}")
        for name, kind in ROUTE_KINDS.items()
    }
)


@dataclass(frozen=True, slots=True)
class AgUi:
    """The table `[agui]`: agents, teams and workflows for clients of AG-UI (docs/agui.md)."""

    enabled: bool = False
