"""The table `[openai]`, and the routes of the face. Each request is one of an operation."""

from __future__ import annotations

from typing import Annotated

from agentctl.light_dataclass import dataclass
from agentctl.records.routes import Route, RouteTable
from agentctl.records.value_types import Pattern

IgnoredParameter = Annotated[
    str,
    Pattern(
        r"^[A-Za-z_][A-Za-z0-9_]{0,63}$",
        'the name of a parameter: 1 to 64 letters, digits and "_", not starting with a digit',
    ),
]

DEFAULT_IGNORED = (
    "frequency_penalty", "logit_bias", "max_completion_tokens", "max_output_tokens", "max_tokens",
    "presence_penalty", "reasoning", "reasoning_effort", "seed", "service_tier", "temperature",
    "top_p", "verbosity",
)  # fmt: skip
"""Parameters that chat programs send with their first message, without being asked to."""


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


@dataclass(frozen=True, slots=True)
class OpenAI:
    """The table `[openai]`: the interface for clients of OpenAI's API (docs/openai.md).

    Attributes:
        ignored_parameters: parameters of requests that have no effect instead of an error; the name
            of one that is honoured changes nothing.
    """

    enabled: bool = False
    ignored_parameters: tuple[IgnoredParameter, ...] = DEFAULT_IGNORED
