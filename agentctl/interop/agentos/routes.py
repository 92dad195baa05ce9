"""The routes that `server.compatibility = "agentos"` adds to operations, with their policy."""

from __future__ import annotations

from typing import NamedTuple

from agentctl.interface.operations import ROUTES
from agentctl.records.routes import Route, RouteTable


class AgentOSRoute(NamedTuple):
    """A route with the policy and the audit entries of an operation.

    Without the id of a component in the path, the scope is the one for all components.
    """

    operation: str
    route: Route


_APPROVAL = "/approvals/{approval_id}"

AGENTOS_ROUTES: dict[str, AgentOSRoute] = {
    "get_session_run_previews": AgentOSRoute(
        "get_session_runs", Route("GET", f"{ROUTES['get_session_by_id'].template}/run-previews")
    ),
    "count_approvals": AgentOSRoute("get_approvals", Route("GET", "/approvals/count")),
    "get_approval": AgentOSRoute("get_approvals", Route("GET", _APPROVAL)),
    "get_approval_status": AgentOSRoute("get_approvals", Route("GET", f"{_APPROVAL}/status")),
    "resolve_approval": AgentOSRoute(
        "decide_agent_approval", Route("POST", f"{_APPROVAL}/resolve")
    ),
}
"""The routes by the name of their endpoint."""

TABLE = RouteTable({name: added.route for name, added in AGENTOS_ROUTES.items()})
