"""The table `[openai]`, and the routes of the face. An operation decides about each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import Field

from agentctl.records.routes import Route

IgnoredParameter = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$",
        description=(
            'the name of a parameter: 1 to 64 letters, digits and "_", not starting with a digit'
        ),
    ),
]

DEFAULT_IGNORED = (
    "frequency_penalty", "logit_bias", "max_completion_tokens", "max_output_tokens", "max_tokens",
    "presence_penalty", "reasoning", "reasoning_effort", "seed", "service_tier", "temperature",
    "top_p", "verbosity",
)  # fmt: skip
"""Parameters that chat programs send with their first message, without being asked to."""


class OpenAIRoute(NamedTuple):
    """A route of the face."""

    route: Route

    decision: str
    """The operation whose policy decides its requests, in words for `auth explain`."""


_RUN = "POST /agents/{agent_id}/runs"

_BODY = f"that of the component that `model` names: explain {_RUN}, or of a team"

_READ = "that of its run: explain GET /agents/{agent_id}/runs/{run_id}"

_CANCEL = "that of its run: explain POST /agents/{agent_id}/runs/{run_id}/cancel"

_RESPONSE = "/v1/responses/{response_id}"
_FILE = "/v1/files/{file_id}"

ROUTES = {
    "list_openai_models": OpenAIRoute(
        Route("GET", "/v1/models"), f"lists what the caller may run: explain {_RUN}"
    ),
    "get_openai_model": OpenAIRoute(
        Route("GET", "/v1/models/{model}"), f"that of a run of the model: explain {_RUN}"
    ),
    "create_chat_completion": OpenAIRoute(Route("POST", "/v1/chat/completions"), _BODY),
    "create_response": OpenAIRoute(Route("POST", "/v1/responses"), _BODY),
    "get_response": OpenAIRoute(Route("GET", _RESPONSE), _READ),
    "delete_response": OpenAIRoute(
        Route("DELETE", _RESPONSE), "that of its session: explain DELETE /sessions/{session_id}"
    ),
    "cancel_response": OpenAIRoute(Route("POST", f"{_RESPONSE}/cancel"), _CANCEL),
    "list_response_input_items": OpenAIRoute(Route("GET", f"{_RESPONSE}/input_items"), _READ),
    "create_file": OpenAIRoute(
        Route("POST", "/v1/files"), "that of an upload: explain POST /files"
    ),
    "list_files": OpenAIRoute(Route("GET", "/v1/files"), "that of the list: explain GET /files"),
    "get_file": OpenAIRoute(Route("GET", _FILE), "that of the file: explain GET /files/{file_id}"),
    "get_file_content": OpenAIRoute(
        Route("GET", f"{_FILE}/content"), "that of its bytes: explain GET /files/{file_id}/content"
    ),
    "delete_file": OpenAIRoute(
        Route("DELETE", _FILE), "that of its deletion: explain DELETE /files/{file_id}"
    ),
}


@dataclass(frozen=True, slots=True)
class OpenAI:
    """The table `[openai]`: the interface for clients of OpenAI's API (docs/openai.md)."""

    enabled: bool = False

    ignored_parameters: tuple[IgnoredParameter, ...] = DEFAULT_IGNORED
    """Parameters of requests that have no effect instead of an error. The name of a parameter that
    is honoured changes nothing here."""
