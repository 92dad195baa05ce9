"""The routes that `server.compatibility = "agentos"` adds to operations, with their policy."""

from __future__ import annotations

from agentctl.operations import ROUTES
from agentctl.records.routes import Route, RouteTable

AGENTOS_ROUTES: dict[str, Route] = {
    "get_session_runs": Route("GET", f"{ROUTES['get_session_by_id'].template}/run-previews")
}

TABLE = RouteTable(AGENTOS_ROUTES)
