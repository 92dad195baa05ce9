"""The OpenAPI 3.1.0 document: what FastAPI derives from the declarations, and what it cannot know.

FastAPI sees parameters and types of answers. Bodies, errors, security and examples are added from
the same tables that the server works by: `requests`, `errors`, `policy` and `examples`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from agentctl import INTERFACE_VERSION
from agentctl.auth import policy
from agentctl.records.document import ErrorBody, ForbiddenBody
from agentctl.records.kinds import KINDS
from agentctl.server.bodies import FORM, JSON, RequestBody
from agentctl.server.openapi import examples
from agentctl.server.routing import Operation

__all__ = [
    "EVENT_STREAM_RESPONSES",
    "NOT_READY_RESPONSES",
    "RUN_RESPONSES",
    "TITLE",
    "add_base_path",
    "build_document",
    "describe_operation",
]

TITLE = "agentctl"

Responses = dict[int | str, dict[str, Any]]

_COMMON_ERRORS = (400, 401, 403, 404, 422, 500, 503)

_TAGS = [
    *(
        {"name": names.tag, "description": f"{names.noun}s and their runs"}
        for names in KINDS.values()
    ),
    {"name": "Sessions", "description": "Stored sessions: metadata, state and history"},
    {"name": "Runs", "description": "Runs across sessions"},
    {"name": "Service accounts", "description": "Callers that are machines, and their tokens"},
    {"name": "Authorization", "description": "Who the caller is, and who may do what"},
    {"name": "System", "description": "What the instance says of itself"},
]

_DESCRIPTION = """Hosts agents, teams and workflows, keeps their sessions, and cancels their runs.

Callers authenticate with a JWT, or with the token of a service account, as a bearer token. Errors
are `{"detail", "error_code"}`; a 403 also names `required_scopes`. Every answer carries
`X-Request-ID`."""

_EVENTS = {"text/event-stream": {"schema": {"type": "string"}, "example": examples.STREAM}}

RUN_RESPONSES: Responses = {
    200: {
        "description": "The run's record, or with `stream` its events",
        "content": _EVENTS,
    },
    202: {
        "description": "The run was started in the background",
        "content": {
            JSON: {
                "schema": {"$ref": "#/components/schemas/RunRecord"},
            }
        },
    },
}
"""What starting a run answers beside its record."""

EVENT_STREAM_RESPONSES: Responses = {
    200: {"description": "The events of the run", "content": _EVENTS}
}
"""What following a run answers."""

NOT_READY_RESPONSES: Responses = {
    503: {
        "description": "The instance cannot serve",
        "content": {
            JSON: {
                "schema": {"$ref": "#/components/schemas/ReadinessRecord"},
                "example": {"status": "unavailable", "checks": {"database": "failed"}},
            }
        },
    }
}
"""What readiness answers when there is none."""


def describe_operation(
    endpoint: Callable[..., Any],
    *,
    errors: Iterable[int],
    body: RequestBody | None,
    more: Responses,
) -> dict[str, Any]:
    """What FastAPI is told of an operation: keyword arguments of its route.

    Args:
        endpoint: its name is the operation id; the first line of its docstring the summary.
        errors: statuses of errors beside the common ones.
        body: how its body is read.
        more: responses that stand beside, or replace, those made here.
    """
    name = endpoint.__name__
    summary, _, text = (inspect.getdoc(endpoint) or "").partition("\n")
    extra: dict[str, Any] = {} if body is None else {"requestBody": _build_request_body(body)}
    if not isinstance(policy.POLICY.get(name), policy.Public):
        extra["security"] = [{"HTTPBearer": []}]
    return {
        "summary": summary.rstrip("."),
        "description": "\n\n".join(filter(None, (text.strip(), _describe_requirement(name)))),
        "response_description": "Successful response",
        "responses": _build_responses(name, errors) | more,
        "openapi_extra": extra,
    }


def _describe_requirement(name: str) -> str:
    """What the policy asks of a caller, in words. An operation without a row stops the start."""
    rule = policy.POLICY.get(name)
    if rule is None or isinstance(rule, policy.Public):
        return ""
    if isinstance(rule, policy.Admin):
        return "Requires the admin scope."
    scopes = " or ".join(f"`{scope}`" for scope in policy.scope_forms(name))
    return f"Requires the scope {scopes}." if scopes else "Requires a valid token."


def _build_responses(name: str, errors: Iterable[int]) -> Responses:
    public = isinstance(policy.POLICY.get(name), policy.Public)
    common = (500, 503) if public else _COMMON_ERRORS
    return {code: _build_error_response(code) for code in sorted({*common, *errors})}


def _build_error_response(code: int) -> dict[str, Any]:
    title, example = examples.ERRORS[code]
    return {
        "model": ForbiddenBody if code == 403 else ErrorBody,
        "description": title,
        "content": {JSON: {"example": example}},
    }


def _build_request_body(body: RequestBody) -> dict[str, Any]:
    schema = _inline_definitions(TypeAdapter(body.record).json_schema())
    content = {JSON: {"schema": schema | {"additionalProperties": False}}}
    if body.form:
        content[FORM] = {"schema": schema}
    return {"required": not body.optional, "content": content}


def _inline_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a body with its parts in their places: they are no records by themselves."""
    parts = schema.pop("$defs", {})

    def put(node: Any) -> Any:
        if isinstance(node, list):
            return [put(each) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            part: dict[str, Any] = put(parts[node["$ref"].rpartition("/")[2]])
            return part | {"additionalProperties": False}
        return {key: put(value) for key, value in node.items()}

    written: dict[str, Any] = put(schema)
    return written


def build_document(routes: Iterable[Operation]) -> bytes:
    """The document, without a base path; made once."""
    document = get_openapi(
        title=TITLE,
        version=INTERFACE_VERSION,
        openapi_version="3.1.0",
        description=_DESCRIPTION,
        routes=list(routes),
        tags=_TAGS,
    )
    for methods in document["paths"].values():
        for operation in methods.values():
            _add_examples(operation)
    document["components"]["securitySchemes"] = {
        "HTTPBearer": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "JWT",
            "description": "A JWT whose `scopes` claim says what it may be used for, or the token"
            " of a service account",
        }
    }
    return orjson.dumps(document)


def _add_examples(operation: dict[str, Any]) -> None:
    """Put the examples in: afterwards, because FastAPI drops every null that it is given.

    Where there is none there is no document: what FastAPI takes for one goes.
    """
    name = operation["operationId"]
    answer = examples.ANSWERS.get(name)
    for status, example in {"200": answer, "201": answer, "202": examples.STARTED}.items():
        content = operation["responses"].get(status, {}).get("content", {})
        if JSON in content and example is not None:
            content[JSON]["example"] = example
        else:
            content.pop(JSON, None)
    for content in operation.get("requestBody", {}).get("content", {}).values():
        content["example"] = examples.BODIES[name]


def add_base_path(document: bytes, root_path: str) -> bytes:
    """The document for an application that is served under a path."""
    if not root_path:
        return document
    servers: list[Mapping[str, str]] = [{"url": root_path}]
    return b'{"servers":' + orjson.dumps(servers) + b"," + document[1:]
