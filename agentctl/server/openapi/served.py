"""The OpenAPI document that a server answers: that of the release, with the routes of a user."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from agentctl.server.access import is_public
from agentctl.server.routing import Operation
from agentctl.server.user_routes import list_routes

TITLE = "agentctl"


def build_served_document(app: FastAPI, *, authorization: bool) -> bytes:
    """Return the document of an application without a base path, as JSON.

    Args:
        authorization: False for a server without authorization: it asks for no credential, and
            every operation may refuse a web page with 403.
    """
    released = (files(__package__) / "document.json").read_bytes()
    if authorization and not _has_own_parts(app):
        return released

    document: dict[str, Any] = orjson.loads(released)
    if not authorization:
        _remove_authorization(document)
    return orjson.dumps(_add_user_routes(document, app, authorization=authorization))


def _has_own_parts(app: FastAPI) -> bool:
    """Return True if an application has more to describe than the operations of a release."""
    own_routes = any(not isinstance(route, Operation) for route in app.routes)
    return own_routes or bool(app.webhooks.routes or app.openapi_tags) or app.title != TITLE


def _remove_authorization(document: dict[str, Any]) -> None:
    """Describe a server without authorization, in place."""
    # Loaded only here: the released document has all descriptions already.
    from agentctl.server.openapi.descriptions import describe_error

    del document["components"]["securitySchemes"]
    for methods in document["paths"].values():
        for operation in methods.values():
            operation.pop("security", None)
            responses = operation["responses"]
            responses.pop("401", None)
            responses.setdefault("403", describe_error(403))


_PREFIX = "#/components/schemas/"

_REFUSALS = {
    "401": {"description": "Unauthenticated", "model": "ErrorBody"},
    "403": {"description": "Insufficient scopes", "model": "ForbiddenBody"},
}


def _add_user_routes(
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
                methods = own["paths"].get(getattr(route, "path_format", None), {})
                _add_security(methods, route)

    components = document["components"]
    schemas = components["schemas"]
    new_names: dict[str, str] = {}
    for name, schema in own.get("components", {}).get("schemas", {}).items():
        new_name = name
        # An equal schema may keep its name: it is a record of agentctl that a route returns.
        while schemas.get(new_name, schema) != schema:
            new_name = f"Own{new_name}"
        new_names[name] = new_name
    own = _rename(own, {_PREFIX + name: _PREFIX + new for name, new in new_names.items()})

    for kind, entries in own.get("components", {}).items():
        own_entries = {new_names.get(name, name): entry for name, entry in entries.items()}
        components[kind] = own_entries | components.get(kind, {})

    document["info"]["title"] = app.title
    document["paths"] |= own["paths"]
    document["tags"] += own.get("tags", [])
    webhooks = own.get("webhooks")
    if webhooks:
        document["webhooks"] = webhooks
    return document


def _add_security(methods: dict[str, Any], route: Any) -> None:
    """Add the credential and the refusals to the operations of a route that needs a token."""
    for method in getattr(route, "methods", None) or ():
        operation = methods.get(method.lower())
        if operation is None:
            # It is not part of the document.
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
    if isinstance(node, str):
        return names.get(node, node)
    return node
