"""The routes that `server.compatibility = "agentos"` adds to operations, with their policy."""

from __future__ import annotations

from agentctl.interface.operations import ROUTES
from agentctl.records.routes import Route, RouteTable

_APPROVAL = "/approvals/{approval_id}"

AGENTOS_ROUTES: dict[str, tuple[str, Route]] = {
    "get_session_run_previews": (
        "get_session_runs",
        Route("GET", f"{ROUTES['get_session_by_id'].template}/run-previews"),
    ),
    "get_session_media": (
        "get_file_content",
        Route("GET", f"{ROUTES['get_session_by_id'].template}/media/{{file_id}}"),
    ),
    "count_approvals": ("get_approvals", Route("GET", "/approvals/count")),
    "get_approval": ("get_approvals", Route("GET", _APPROVAL)),
    "get_approval_status": ("get_approvals", Route("GET", f"{_APPROVAL}/status")),
    "resolve_approval": ("decide_agent_approval", Route("POST", f"{_APPROVAL}/resolve")),
}
"""The operations with their policy and audit entries, and the routes, by the name of the endpoint.

Without the id of a component in the path, the scope is the one for all components.
"""

TABLE = RouteTable({name: route for name, (_, route) in AGENTOS_ROUTES.items()})
