"""Routes that settings add to those of the operations: of AgentOS, of OpenAI's API and of MCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agentctl.records.routes import (
    AGENTOS_ROUTES,
    MCP_PATH,
    OPENAI_ROUTES,
    Route,
    RouteMatch,
    RouteTable,
)

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

_RUN = "POST /agents/{agent_id}/runs"
_BODY = f"that of the component that `model` names: explain {_RUN}, or of a team"
_READ = "that of its run: explain GET /agents/{agent_id}/runs/{run_id}"

_DECISIONS = {
    "list_openai_models": f"lists what the caller may run: explain {_RUN}",
    "get_openai_model": f"that of a run of the model: explain {_RUN}",
    "create_chat_completion": _BODY,
    "create_response": _BODY,
    "get_response": _READ,
    "list_response_input_items": _READ,
    "cancel_response": "that of its run: explain POST /agents/{agent_id}/runs/{run_id}/cancel",
    "delete_response": "that of its session: explain DELETE /sessions/{session_id}",
    "use_mcp": f"that of the tool that is called: explain its request, such as {_RUN}",
}
"""The operation whose policy decides a request, by the route."""

_AGENTOS, _OPENAI = RouteTable(AGENTOS_ROUTES), RouteTable(OPENAI_ROUTES)


class FaceRoute(NamedTuple):
    """A route of the interface for another API.

    Attributes:
        name: its name in the log.
        place: its method and path.
        setting: the setting that serves it.
        is_served: True if the setting is on.
        decision: the operation whose policy decides.
    """

    name: str
    place: str
    setting: str
    is_served: bool
    decision: str


def find_added_route(settings: Settings, method: str, path: str) -> tuple[RouteMatch, Route] | None:
    """Return the operation and the route that `server.compatibility` adds; None: there is none."""
    if settings.server.compatibility != "agentos":
        return None
    match = _AGENTOS.find(method, path)
    return None if match is None else (match, AGENTOS_ROUTES[match.operation])


def find_face_route(settings: Settings, method: str, path: str) -> FaceRoute | None:
    """Return the route of an interface for another API, served or not; None: there is none."""
    if path == MCP_PATH:
        name, place = "use_mcp", f"{method} {MCP_PATH}"
        setting, is_served = "mcp_endpoint.enabled", settings.mcp_endpoint.enabled
    elif (match := _OPENAI.find(method, path)) is not None:
        name, route = match.operation, OPENAI_ROUTES[match.operation]
        place = f"{route.method} {route.template}"
        setting, is_served = "openai.enabled", settings.openai.enabled
    else:
        return None
    return FaceRoute(name, place, setting, is_served, _DECISIONS[name])
