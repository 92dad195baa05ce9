"""The routes that `server.compatibility = "agentos"` adds to operations, with their policy."""

from __future__ import annotations

from agentctl.operations import ROUTES
from agentctl.records.kinds import KINDS
from agentctl.records.routes import Route, RouteTable, operation_ids

AGENTOS_ROUTES: dict[str, Route] = {
    "get_session_runs": Route("GET", f"{ROUTES['get_session_by_id'].template}/run-previews"),
    **{
        operation_ids(kind).cancel_run: Route(
            "POST", f"/{names.path}/{{{names.id_field}}}/runs/{{run_id}}/continue"
        )
        for kind, names in KINDS.items()
    },
}

TABLE = RouteTable(AGENTOS_ROUTES)
