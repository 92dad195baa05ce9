"""The routes of the face. Each request is one of an operation."""

from __future__ import annotations

from agentctl.records.routes import Route, RouteTable

_RESPONSE = "/v1/responses/{response_id}"

OPENAI_ROUTES: dict[str, Route] = {
    "list_openai_models": Route("GET", "/v1/models"),
    "get_openai_model": Route("GET", "/v1/models/{model}"),
    "create_chat_completion": Route("POST", "/v1/chat/completions"),
    "create_response": Route("POST", "/v1/responses"),
    "get_response": Route("GET", _RESPONSE),
    "delete_response": Route("DELETE", _RESPONSE),
    "cancel_response": Route("POST", f"{_RESPONSE}/cancel"),
    "list_response_input_items": Route("GET", f"{_RESPONSE}/input_items"),
}

TABLE = RouteTable(OPENAI_ROUTES)

_RUN = "POST /agents/{agent_id}/runs"
_BODY = f"that of the component that `model` names: explain {_RUN}, or of a team"
_READ = "that of its run: explain GET /agents/{agent_id}/runs/{run_id}"

DECISIONS = {
    "list_openai_models": f"lists what the caller may run: explain {_RUN}",
    "get_openai_model": f"that of a run of the model: explain {_RUN}",
    "create_chat_completion": _BODY,
    "create_response": _BODY,
    "get_response": _READ,
    "list_response_input_items": _READ,
    "cancel_response": "that of its run: explain POST /agents/{agent_id}/runs/{run_id}/cancel",
    "delete_response": "that of its session: explain DELETE /sessions/{session_id}",
}
"""The operation whose policy decides a request, by the route."""
