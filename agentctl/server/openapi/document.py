"""The OpenAPI 3.1.0 document of an application, built when it is first requested.

FastAPI describes the operations and the routes of a user. Schemas of bodies, examples, and what
authorization adds to the routes of a user are added here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import Field, TypeAdapter
from typing_extensions import TypeAliasType

from agentctl import INTERFACE_VERSION, __version__
from agentctl.records.document import ErrorBody, ForbiddenBody, HeldBody
from agentctl.records.event_records import ItemsChangedEvent, RunEventRecord
from agentctl.records.kinds import KINDS
from agentctl.records.run_spec import ConfirmationBody
from agentctl.records.runs import SessionExport
from agentctl.server.access import is_public
from agentctl.server.content import JSON
from agentctl.server.openapi.descriptions import EXAMPLES, describe_error, name_form
from agentctl.server.openapi.responses import EVENT_STREAM, JSON_LINES, REFERENCE
from agentctl.server.requests import RequestBody
from agentctl.server.routing import Operation
from agentctl.server.user_routes import list_routes

TITLE = "agentctl"

_TAGS = [
    *(
        {"name": names.tag, "description": f"{names.noun}s and their runs"}
        for names in KINDS.values()
    ),
    {"name": "Sessions", "description": "Stored sessions: metadata, state and history"},
    {"name": "Runs", "description": "Runs across sessions"},
    {"name": "Approvals", "description": "Decisions that paused runs wait for"},
    {"name": "Files", "description": "Pictures, documents and sounds of sessions"},
    {"name": "Memories", "description": "Facts about users that agents keep"},
    {"name": "Users", "description": "Export and erasure of the data of a person"},
    {"name": "Usage", "description": "Tokens, cost and outcomes of runs, and budgets"},
    {"name": "Halts", "description": "Stops of agents, tools, models, users or everything"},
    {"name": "Service accounts", "description": "Accounts of programs, and their tokens"},
    {"name": "Webhooks", "description": "Endpoints of the configuration and their deliveries"},
    {"name": "Authorization", "description": "Identity of the caller, access decisions, audit log"},
    {"name": "System", "description": "Health, readiness, versions and configuration"},
]

RunEvent = TypeAliasType("RunEvent", Annotated[RunEventRecord, Field(discriminator="event")])
"""The data of an event of a stream, as a schema of the document."""

_FURTHER_RECORDS: tuple[Any, ...] = (
    RunEvent,
    ItemsChangedEvent,
    SessionExport,
    ErrorBody,
    ForbiddenBody,
    ConfirmationBody,
    HeldBody,
)
"""The records of responses that no operation declares as its result."""

_DESCRIPTION = f"""Version {__version__} of agentctl: runs agents, teams and workflows, stores their
sessions, and cancels their runs. {INTERFACE_VERSION} is the version of the interface, which follows
AgentOS.

Callers authenticate with a JWT or the token of a service account, as a bearer token. Errors are
`{{"detail", "error_code"}}`; a 403 also lists `required_scopes`. Every response has the header
`X-Request-ID`."""


_SECURITY_SCHEMES = {
    "HTTPBearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "A JWT with a `scopes` claim, or the token of a service account",
    }
}


def build_document(operations: Iterable[Operation], *, authorization: bool = True) -> bytes:
    """Return the document without a base path, as JSON.

    Args:
        authorization: False for a server without authorization: it asks for no credential, and
            every operation may refuse a web page with 403.
    """
    operations = [operation for operation in operations if operation.include_in_schema]
    document = get_openapi(
        title=TITLE,
        version=INTERFACE_VERSION,
        openapi_version="3.1.0",
        description=_DESCRIPTION,
        routes=operations,
        tags=_TAGS,
    )
    bodies = [operation.body for operation in operations if operation.body is not None]
    document["components"]["schemas"] |= _build_schemas(bodies)
    for methods in document["paths"].values():
        for operation in methods.values():
            _add_examples(operation)
            if not authorization:
                _remove_authorization(operation)
    if authorization:
        document["components"]["securitySchemes"] = _SECURITY_SCHEMES
    return orjson.dumps(document)


def _remove_authorization(operation: dict[str, Any]) -> None:
    """Describe an operation as one of a server without authorization."""
    operation.pop("security", None)
    responses = operation["responses"]
    responses.pop("401", None)
    responses.setdefault("403", describe_error(403))


def _build_schemas(bodies: Iterable[RequestBody]) -> dict[str, Any]:
    """Return the schemas of the bodies and of `_FURTHER_RECORDS` by name.

    A form is a copy of its body. Generators of clients need a name for each: they choose the
    content type by the class of the value.
    """
    schemas = _describe(body.record for body in bodies)
    for body in bodies:
        if body.form:
            form = dict(schemas[body.record.__name__], title=name_form(body))
            del form["additionalProperties"]
            schemas[name_form(body)] = form
    return schemas | _describe(_FURTHER_RECORDS)


def _describe(records: Iterable[Any]) -> dict[str, Any]:
    """Return the schemas of records, and of those that they refer to, by name."""
    _, schemas = TypeAdapter.json_schemas(
        ((record, "serialization", TypeAdapter(record)) for record in records),
        ref_template=REFERENCE,
    )
    found: dict[str, Any] = schemas["$defs"]
    return found


def _add_examples(operation: dict[str, Any]) -> None:
    """Add the examples to an operation of the finished document.

    FastAPI would drop each null of an example, so they are not given to it. A response without an
    example has no document, so the schema that FastAPI invents for it is removed.
    """
    name = operation["operationId"]
    example = EXAMPLES["responses"].get(name)
    by_status = {"200": example, "201": example, "202": EXAMPLES["started_run"]}
    for status, document in by_status.items():
        content = operation["responses"].get(status, {}).get("content", {})
        if JSON in content and document is not None:
            content[JSON]["example"] = document
        else:
            content.pop(JSON, None)
        if JSON_LINES in content:
            content[JSON_LINES]["example"] = example[0]
        if EVENT_STREAM in content:
            content[EVENT_STREAM]["example"] = EXAMPLES["event"]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        content["example"] = EXAMPLES["request_bodies"][name]


_PREFIX = "#/components/schemas/"

_REFUSALS = {
    "401": {"description": "Unauthenticated", "model": "ErrorBody"},
    "403": {"description": "Insufficient scopes", "model": "ForbiddenBody"},
}


def add_user_routes(
    document: dict[str, Any], app: FastAPI, *, authorization: bool
) -> dict[str, Any]:
    """Return the document of agentctl with the routes of an application.

    A schema of the user with the name of another one of agentctl gets the prefix `Own`, so that the
    names of agentctl stay.

    Args:
        authorization: False if no route needs a token.
    """
    own = get_openapi(
        title=app.title,
        version=app.version,
        routes=[route for route in app.routes if not isinstance(route, Operation)],
        webhooks=app.webhooks.routes,
        tags=app.openapi_tags,
        separate_input_output_schemas=app.separate_input_output_schemas,
    )
    if authorization:
        for route in list_routes(app):
            if not is_public(getattr(route, "endpoint", None)):
                _add_security(own["paths"].get(getattr(route, "path_format", None), {}), route)
    parts = document["components"]
    known = document["components"]["schemas"]
    names: dict[str, str] = {}
    for name, schema in own.get("components", {}).get("schemas", {}).items():
        names[name] = name
        while known.get(names[name], schema) != schema:
            names[name] = f"Own{names[name]}"
    own = _rename(own, {_PREFIX + name: _PREFIX + new for name, new in names.items()})
    for kind, entries in own.get("components", {}).items():
        added = {names.get(name, name): entry for name, entry in entries.items()}
        parts[kind] = added | parts.get(kind, {})
    document["info"]["title"] = app.title
    document["paths"] |= own["paths"]
    document["tags"] += own.get("tags", [])
    if webhooks := own.get("webhooks"):
        document["webhooks"] = webhooks
    return document


def _add_security(methods: dict[str, Any], route: Any) -> None:
    for method in getattr(route, "methods", None) or ():
        if (operation := methods.get(method.lower())) is None:
            continue
        schemes = operation.get("security") or [{}]
        operation["security"] = [{**scheme, "HTTPBearer": []} for scheme in schemes]
        for status, refusal in _REFUSALS.items():
            schema = {"$ref": _PREFIX + refusal["model"]}
            response = {
                "description": refusal["description"],
                "content": {"application/json": {"schema": schema}},
            }
            operation["responses"].setdefault(status, response)


def _rename(node: Any, names: dict[str, str]) -> Any:
    """Return a JSON value with other references; also those of a discriminator are strings."""
    if isinstance(node, dict):
        return {key: _rename(value, names) for key, value in node.items()}
    if isinstance(node, list):
        return [_rename(value, names) for value in node]
    return names.get(node, node) if isinstance(node, str) else node
