"""The OpenAPI description of one operation, as the options of its route."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from agentctl.auth import policy
from agentctl.interface.requirements import Admin, Public
from agentctl.interface.responses import FILE_BODY, JSON, Responses, refer
from agentctl.server.content import FORM
from agentctl.server.requests import RequestBody

EXAMPLES: dict[str, Any] = json.loads((files(__package__) / "examples.json").read_text("utf-8"))
"""Examples: `responses` and `request_bodies` by operation id, `errors` by status."""

_COMMON_ERRORS = (400, 401, 403, 404, 422, 500, 503)

_ETAG = {"ETag": {"description": "The entity tag of the document", "schema": {"type": "string"}}}

_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "The `ETag` of an earlier response; the same document is a 304 without a body",
}


def describe_operation(
    name: str,
    *,
    texts: tuple[str, str],
    has_tag: bool,
    body: RequestBody | None,
    errors: tuple[int, ...],
    responses: Responses,
) -> dict[str, Any]:
    """Return the arguments of FastAPI's `APIRoute` that describe an operation.

    The description is for a server with authorization.

    Args:
        name: the operation id.
        texts: summary and description.
        has_tag: True if its responses have an entity tag.
        errors: error statuses, in addition to those of every operation.
        responses: further OpenAPI responses, which replace generated ones.
    """
    summary, description = texts
    requirement = _describe_requirement(name)
    paragraphs = [paragraph for paragraph in (description, requirement) if paragraph]

    extra: dict[str, Any] = {}
    if body is not None:
        extra["requestBody"] = _describe_body(body)
    if name == "upload_file":
        extra["requestBody"] = FILE_BODY
    if not _is_public(name):
        extra["security"] = [{"HTTPBearer": []}]
    if has_tag:
        extra["parameters"] = [_IF_NONE_MATCH]

    return {
        "operation_id": name,
        "summary": summary,
        "description": "\n\n".join(paragraphs) or f"{summary}.",
        "response_description": "Successful response",
        "responses": _describe_responses(name, errors, has_tag=has_tag) | dict(responses),
        "openapi_extra": extra,
    }


def name_form(body: RequestBody) -> str:
    """Return the name of the schema of a body as a form.

    Generators of clients need another name than the name of the JSON body: they choose the content
    type by the class of the value.
    """
    return f"{body.record.__name__.removesuffix('Body')}Form"


def describe_error(status: int) -> dict[str, Any]:
    """Return the OpenAPI response of an error status.

    It refers to a schema of the document. FastAPI would compile a model again for each response,
    which takes half a second of the start.
    """
    example = EXAMPLES["errors"][str(status)]
    schema = refer("ForbiddenBody" if status == 403 else "ErrorBody")
    return {
        "description": example["title"],
        "content": {JSON: {"schema": schema, "example": example["body"]}},
    }


def _is_public(name: str) -> bool:
    return isinstance(policy.POLICY.get(name), Public)


def _describe_body(body: RequestBody) -> dict[str, Any]:
    content = {JSON: {"schema": refer(body.record.__name__)}}
    described: dict[str, Any] = {"required": not body.optional, "content": content}
    if body.form:
        content[FORM] = {"schema": refer(name_form(body))}
        text = "A multipart form of these text fields is accepted as well; no files"
        described["description"] = text
    return described


def _describe_requirement(name: str) -> str:
    rule = policy.POLICY.get(name)
    if rule is None or isinstance(rule, Public):
        return ""
    if isinstance(rule, Admin):
        return "Requires the admin scope."

    scopes = " or ".join(f"`{scope}`" for scope in policy.scope_forms(name))
    return f"Requires the scope {scopes}." if scopes else "Requires a valid token."


def _describe_responses(
    name: str, errors: tuple[int, ...], *, has_tag: bool
) -> dict[int | str, dict[str, Any]]:
    common = (500, 503) if _is_public(name) else _COMMON_ERRORS
    described: dict[int | str, dict[str, Any]] = {}
    if has_tag:
        described[200] = {"headers": _ETAG}
        described[304] = {"description": "Not modified", "headers": _ETAG}
    for status in sorted({*common, *errors}):
        described[status] = describe_error(status)
    return described
