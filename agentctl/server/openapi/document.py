"""The OpenAPI 3.1.0 document, built when it is first requested.

FastAPI needs 25 MB and a third of a second, so no other module imports it, and no module of the
server imports this one at its start.

FastAPI derives parameters and result schemas from the declarations of the operations. Bodies,
errors, security and examples are added from the tables that the server uses: `requests`,
`agentctl.auth.policy` and `examples.json`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated, Any, get_args, get_origin

import fastapi
import orjson
from fastapi.openapi.docs import get_swagger_ui_oauth2_redirect_html
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import Field, TypeAdapter
from typing_extensions import TypeAliasType

from agentctl import INTERFACE_VERSION
from agentctl.auth import policy
from agentctl.interface.declarations import Header, Path, Query
from agentctl.records.document import ErrorBody, ForbiddenBody
from agentctl.records.event_records import ItemsChangedEvent, RunEventRecord
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.runs import SessionExport
from agentctl.server.openapi.responses import EVENT_STREAM, FILE_BODY, JSON_LINES, REFERENCE, refer
from agentctl.server.requests import FORM, JSON, RequestBody
from agentctl.server.routing import Operation

TITLE = "agentctl"

_EXAMPLES: dict[str, Any] = json.loads((files(__package__) / "examples.json").read_text("utf-8"))
"""Examples: `responses` and `request_bodies` by operation id, `errors` by status."""

_COMMON_ERRORS = (400, 401, 403, 404, 422, 500, 503)

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
    {"name": "Service accounts", "description": "Accounts of programs, and their tokens"},
    {"name": "Webhooks", "description": "Endpoints of the configuration and their deliveries"},
    {"name": "Authorization", "description": "Identity of the caller, access decisions, audit log"},
    {"name": "System", "description": "Health, readiness, versions and configuration"},
]

SessionType = TypeAliasType("SessionType", ComponentKind)
"""The kinds as an enumeration of the document."""

RunEvent = TypeAliasType("RunEvent", Annotated[RunEventRecord, Field(discriminator="event")])
"""The data of an event of a stream, as a schema of the document."""

_FURTHER_RECORDS: tuple[Any, ...] = (RunEvent, ItemsChangedEvent, SessionExport)
"""The records of responses that no operation declares as its result."""

_ETAG = {"ETag": {"description": "The entity tag of the document", "schema": {"type": "string"}}}

_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "The `ETag` of an earlier response; the same document is a 304 without a body",
}

_DESCRIPTION = """Runs agents, teams and workflows, stores their sessions, and cancels their runs.

Callers authenticate with a JWT or the token of a service account, as a bearer token. Errors are
`{"detail", "error_code"}`; a 403 also lists `required_scopes`. Every response has the header
`X-Request-ID`."""


def build_redirect_page() -> bytes:
    """Return the page that an authorization server redirects Swagger UI to."""
    return bytes(get_swagger_ui_oauth2_redirect_html().body)


def build_document(operations: Iterable[Operation], *, authorization: bool = True) -> bytes:
    """Return the document without a base path, as JSON.

    Args:
        authorization: False for a server without authorization: it asks for no credential, and
            every operation may refuse a web page with 403.
    """
    operations = [operation for operation in operations if operation.include_in_schema]
    routes = [_build_route(operation, authorization=authorization) for operation in operations]
    document = get_openapi(
        title=TITLE,
        version=INTERFACE_VERSION,
        openapi_version="3.1.0",
        description=_DESCRIPTION,
        routes=routes,
        tags=_TAGS,
    )
    bodies = [operation.body for operation in operations if operation.body is not None]
    document["components"]["schemas"] |= _build_schemas(bodies)
    for methods in document["paths"].values():
        for operation in methods.values():
            _add_examples(operation)
    if authorization:
        document["components"]["securitySchemes"] = {
            "HTTPBearer": {
                "type": "http",
                "scheme": "bearer",
                "bearerFormat": "JWT",
                "description": "A JWT with a `scopes` claim, or the token of a service account",
            }
        }
    return orjson.dumps(document)


def _build_route(operation: Operation, *, authorization: bool) -> APIRoute:
    name = operation.operation
    extra: dict[str, Any] = {}
    if (body := operation.body) is not None:
        names = {JSON: body.record.__name__}
        if body.form:
            names[FORM] = _name_form(body)
        content = {kind: {"schema": refer(name)} for kind, name in names.items()}
        extra["requestBody"] = {"required": not body.optional, "content": content} | (
            {"description": "A multipart form of these text fields is accepted as well; no files"}
            if body.form
            else {}
        )
    if name == "upload_file":
        extra["requestBody"] = FILE_BODY
    if authorization and not isinstance(policy.POLICY.get(name), policy.Public):
        extra["security"] = [{"HTTPBearer": []}]
    if operation.has_tag:
        extra["parameters"] = [_IF_NONE_MATCH]
    return APIRoute(
        operation.path,
        _build_signature_function(operation),
        methods=operation.methods,
        operation_id=name,
        tags=[operation.tag],
        response_model=operation.result,
        status_code=operation.status,
        summary=operation.summary,
        description="\n\n".join(filter(None, (operation.description, _describe_requirement(name))))
        or f"{operation.summary}.",
        response_description="Successful response",
        responses=_build_responses(operation, authorization=authorization),
        openapi_extra=extra,
    )


def _build_signature_function(operation: Operation) -> Any:
    public_names = {argument: name for name, argument in operation.path_names.items()}
    parameters = [
        parameter.replace(
            name=public_names.get(parameter.name, parameter.name),
            annotation=_fastapi_annotation(parameter.annotation),
            default=None if parameter.default == () else parameter.default,
        )
        for parameter in operation.declared
    ]

    def signature_only() -> None:
        raise NotImplementedError

    signature_only.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return signature_only


def _fastapi_annotation(annotation: Any) -> Any:
    if get_origin(annotation) is not Annotated:
        return annotation
    plain, declared, *_ = get_args(annotation)
    kind = {Path: fastapi.Path, Query: fastapi.Query, Header: fastapi.Header}[type(declared)]
    options = {name: value for name, value in asdict(declared).items() if value is not None}
    if "max_items" in options:
        plain = list[str]
        options["max_length"] = options.pop("max_items")
    elif plain == tuple[str, ...]:
        plain = str | None
    elif ComponentKind in (plain, *get_args(plain)):
        plain = SessionType if plain == ComponentKind else SessionType | None
    return Annotated[plain, kind(**options)]


def _describe_requirement(name: str) -> str:
    rule = policy.POLICY.get(name)
    if rule is None or isinstance(rule, policy.Public):
        return ""
    if isinstance(rule, policy.Admin):
        return "Requires the admin scope."
    scopes = " or ".join(f"`{scope}`" for scope in policy.scope_forms(name))
    return f"Requires the scope {scopes}." if scopes else "Requires a valid token."


def _build_responses(
    operation: Operation, *, authorization: bool
) -> dict[int | str, dict[str, Any]]:
    public = isinstance(policy.POLICY.get(operation.operation), policy.Public)
    codes = {*((500, 503) if public else _COMMON_ERRORS), *operation.errors}
    if not authorization:
        codes = codes - {401} | {403}
    errors: dict[int | str, dict[str, Any]] = {}
    for code in sorted(codes):
        example = _EXAMPLES["errors"][str(code)]
        errors[code] = {
            "model": ForbiddenBody if code == 403 else ErrorBody,
            "description": example["title"],
            "content": {JSON: {"example": example["body"]}},
        }
    tagged: dict[int | str, dict[str, Any]] = {}
    if operation.has_tag:
        tagged = {200: {"headers": _ETAG}, 304: {"description": "Not modified", "headers": _ETAG}}
    return tagged | errors | dict(operation.responses)


def _build_schemas(bodies: Iterable[RequestBody]) -> dict[str, Any]:
    """Return the schemas of the bodies and of `_FURTHER_RECORDS` by name.

    A form is a copy of its body. Generators of clients need a name for each: they choose the
    content type by the class of the value.
    """
    schemas = _describe(body.record for body in bodies)
    for schema in schemas.values():
        schema["additionalProperties"] = False
    for body in bodies:
        if body.form:
            form = dict(schemas[body.record.__name__], title=_name_form(body))
            del form["additionalProperties"]
            schemas[_name_form(body)] = form
    return schemas | _describe(_FURTHER_RECORDS)


def _describe(records: Iterable[Any]) -> dict[str, Any]:
    """Return the schemas of records, and of those that they refer to, by name."""
    _, schemas = TypeAdapter.json_schemas(
        ((record, "serialization", TypeAdapter(record)) for record in records),
        ref_template=REFERENCE,
    )
    found: dict[str, Any] = schemas["$defs"]
    return found


def _name_form(body: RequestBody) -> str:
    return f"{body.record.__name__.removesuffix('Body')}Form"


def _add_examples(operation: dict[str, Any]) -> None:
    """Add the examples to an operation of the finished document.

    FastAPI would drop each null of an example, so they are not given to it. A response without an
    example has no document, so the schema that FastAPI invents for it is removed.
    """
    name = operation["operationId"]
    example = _EXAMPLES["responses"].get(name)
    by_status = {"200": example, "201": example, "202": _EXAMPLES["started_run"]}
    for status, document in by_status.items():
        content = operation["responses"].get(status, {}).get("content", {})
        if JSON in content and document is not None:
            content[JSON]["example"] = document
        else:
            content.pop(JSON, None)
        if JSON_LINES in content:
            content[JSON_LINES]["example"] = example[0]
        if EVENT_STREAM in content:
            content[EVENT_STREAM]["example"] = _EXAMPLES["event"]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        content["example"] = _EXAMPLES["request_bodies"][name]
