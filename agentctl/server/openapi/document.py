"""The OpenAPI 3.1.0 document of the operations, as `make docs` writes it to `document.json`.

FastAPI describes the operations; schemas of bodies and examples are added here. It depends on the
code alone, and what builds it takes seconds and 40 MB: a server reads the file (`served`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi.openapi.utils import get_openapi
from pydantic import Field, TypeAdapter
from typing_extensions import TypeAliasType

from agentctl import INTERFACE_VERSION, __version__
from agentctl.interface.responses import EVENT_STREAM, JSON, JSON_LINES, REFERENCE
from agentctl.records.document import ErrorBody, ForbiddenBody, HeldBody
from agentctl.records.event_records import ItemsChangedEvent, RunEventRecord
from agentctl.records.kinds import KINDS
from agentctl.records.run_spec import ConfirmationBody
from agentctl.records.runs import SessionExport
from agentctl.server.openapi.descriptions import EXAMPLES, name_form
from agentctl.server.openapi.served import TITLE
from agentctl.server.requests import RequestBody
from agentctl.server.routing import Operation

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


def build_document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the document of a server with authorization, without a base path."""
    operations = [operation for operation in operations if operation.include_in_schema]
    document = get_openapi(
        title=TITLE,
        version=INTERFACE_VERSION,
        openapi_version="3.1.0",
        description=_DESCRIPTION,
        routes=[operation.describe() for operation in operations],
        tags=_TAGS,
    )
    bodies = [operation.body for operation in operations if operation.body is not None]
    document["components"]["schemas"] |= _build_schemas(bodies)

    for methods in document["paths"].values():
        for operation in methods.values():
            _add_examples(operation)
    document["components"]["securitySchemes"] = _SECURITY_SCHEMES
    return document


def format_document(document: dict[str, Any]) -> str:
    """Return the JSON text of a document, with a line for each operation and for each schema."""
    paths = _format_members(
        {path: _Lines(_format_members(methods)) for path, methods in document["paths"].items()}
    )
    components = {
        kind: _Lines(_format_members(entries)) for kind, entries in document["components"].items()
    }
    parts = {"paths": _Lines(paths), "components": _Lines(_format_members(components))}
    return _format_members({**document, **parts}) + "\n"


class _Lines(str):
    """JSON text that is inserted as it is."""


def _format_members(members: dict[str, Any]) -> str:
    """Return an object with a line for each of its members."""
    lines = [f"{_format(name)}:{_format(value)}" for name, value in members.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def _format(value: Any) -> str:
    if isinstance(value, _Lines):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


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
    """Return the schemas of records, and of the records that they refer to, by name."""
    _, schemas = TypeAdapter.json_schemas(
        ((record, "serialization", TypeAdapter(record)) for record in records),
        ref_template=REFERENCE,
    )
    definitions: dict[str, Any] = schemas["$defs"]
    return definitions


def _add_examples(operation: dict[str, Any]) -> None:
    """Add the examples to an operation of the finished document.

    FastAPI would drop each null of an example, so they are not given to it. A response without an
    example has no document, so the schema that FastAPI invents for it is removed.
    """
    name = operation["operationId"]
    example = EXAMPLES["responses"].get(name)
    # A start responds with 200 after the end of its run, and with 202 while the run works.
    is_start = "200" in operation["responses"]
    accepted = EXAMPLES["started_run"] if is_start else example
    by_status = {"200": example, "201": example, "202": accepted}

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
