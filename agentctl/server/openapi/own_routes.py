"""The routes of a user in the OpenAPI document of the operations (`server.own_routes`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from agentctl.server.own_routes.access import is_public

_PREFIX = "#/components/schemas/"

_REFUSALS = {
    "401": {"description": "Unauthenticated", "model": "ErrorBody"},
    "403": {"description": "Insufficient scopes", "model": "ForbiddenBody"},
}


def add_own_routes(
    document: dict[str, Any], app: FastAPI, routes: Iterable[Any], *, authorization: bool
) -> dict[str, Any]:
    """Return the document of agentctl with the routes of an application.

    A schema of the user with the name of another one of agentctl gets the prefix `Own`, so that the
    names of agentctl stay.

    Args:
        routes: the routes of the application, as `own_routes.application.list_routes` yields them.
        authorization: False if no route needs a token.
    """
    own = get_openapi(
        title=app.title,
        version=app.version,
        routes=app.routes,
        webhooks=app.webhooks.routes,
        tags=app.openapi_tags,
        separate_input_output_schemas=app.separate_input_output_schemas,
    )
    if authorization:
        for route in routes:
            if not is_public(getattr(route, "endpoint", None)):
                _add_security(own["paths"].get(getattr(route, "path_format", None), {}), route)
    parts, known = document["components"], document["components"]["schemas"]
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
