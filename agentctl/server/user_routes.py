"""The routes of a user, next to the operations in one FastAPI application (docs/own-routes.md).

FastAPI serves them. Before, `UserRoutes` requires a valid token unless `agentctl.public` marks the
route, so that the token is checked before a parameter or body is read. The operations of agentctl
come first: `check_routes` refuses a route that can never be reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import fastapi.routing
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentctl.errors import (
    NO_SUCH_PATH,
    InternalError,
    InvalidConfiguration,
    NotFound,
    Unauthenticated,
)
from agentctl.records.routes import Route, RouteTable
from agentctl.server.access import current_user, is_public
from agentctl.server.answers import CALLER_KEY, USER_ROUTE_KEY
from agentctl.server.content import build_too_large_body, check_announced_length
from agentctl.server.routing import Face, Operation, find_face

_PAGE_POLICY = b"base-uri 'self'; frame-ancestors 'none'; object-src 'none'"
"""The default content security policy of a user's route: its pages may load scripts and styles."""

_PARAMETER = re.compile(r"\{[^}]*\}")


def check_routes(app: FastAPI, operations: Iterable[Operation], faces: Sequence[Face]) -> None:
    """Check the routes of a user before the start.

    Raises:
        InvalidConfiguration: a route can never be reached, because an operation has its path, or is
            a WebSocket, or has the operation id of an operation.
    """
    templates = {operation.place.template: operation.operation for operation in operations}
    operation_ids = set(templates.values())
    table = RouteTable({path: Route("", path) for path in templates})

    for route in list_routes(app):
        path = str(getattr(route, "path", ""))
        original = getattr(route, "original_route", route)
        if getattr(route, "operation_id", None) in operation_ids:
            _refuse(f"{path} has the operation id of an operation: {route.operation_id}")
        if "WebSocket" in type(original).__name__:
            _refuse(f"{path} is a WebSocket, which agentctl does not serve")

        # A path that the route would match.
        sample = _PARAMETER.sub("x", path)
        operation_match = table.find("", sample)
        if operation_match is not None:
            operation = templates[operation_match.operation]
            _refuse(f"{path} is taken by the operation {operation}")

        covers_operations = isinstance(original, Mount) and any(
            template.startswith(f"{path}/") for template in templates if path
        )
        if covers_operations or find_face(faces, sample) is not None:
            _refuse(f"{path} is taken by agentctl, which serves paths like it")


def list_routes(app: FastAPI) -> Iterator[Any]:
    """Yield the routes of a user, with the routes of included routers, in the order of matches.

    Each has `matches` and, unless it is a `Host`, the whole `path`. Later releases of FastAPI keep
    included routers as one route, and list their routes by this function.
    """
    flatten = getattr(fastapi.routing, "iter_route_contexts", iter)
    yield from flatten([route for route in app.routes if not isinstance(route, Operation)])


def _refuse(problem: str) -> None:
    raise InvalidConfiguration(
        f"The route {problem}", hint="choose another one, for example with a prefix: /shop"
    )


async def refuse_unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Raise the error of a path that no route has, instead of FastAPI's own 404."""
    raise NotFound(NO_SUCH_PATH)


class UserRoutes:
    """The ASGI application of the routes of a user: their access and their limits.

    Args:
        app: the application with the routes.
        serve: the router of FastAPI.
    """

    def __init__(self, app: FastAPI, serve: ASGIApp) -> None:
        self._app = app
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request.

        Raises:
            AgentctlError: the request is refused, or failed.
            Exception: the route raised it.
        """
        if scope["type"] != "http":
            await self._serve(scope, receive, send)
            return

        endpoint, path = self._find_endpoint(scope)
        scope[USER_ROUTE_KEY] = None if path is None else f"{scope['method']} {path}"
        caller = scope[CALLER_KEY]
        # A test of the user names the caller by an override of this dependency.
        is_overridden = current_user in self._app.dependency_overrides
        if not is_public(endpoint) and not is_overridden:
            if caller.principal is None:
                raise caller.failure or Unauthenticated()
            caller.count_request()

        receive = _limit_body(scope, receive, caller.app_state.settings.limits.body_bytes)
        send = _add_default_headers(send, is_public=is_public(endpoint))
        try:
            await self._serve(scope, receive, send)
        except SystemExit:
            raise InternalError from None

    def _find_endpoint(self, scope: Scope) -> tuple[object, str | None]:
        """Return the endpoint that FastAPI will choose, and the path of its route; None without it.

        The routes are compared in the order of FastAPI, with its own comparison.
        """
        for route in list_routes(self._app):
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                return child_scope.get("endpoint"), getattr(route, "path", None) or ""
        return None, None


def _add_default_headers(send: Send, *, is_public: bool) -> Send:
    """Return a `send` that adds the header fields that a response has not set."""
    defaults = [(b"content-security-policy", _PAGE_POLICY)]
    if is_public:
        defaults.append((b"cache-control", b"no-cache"))

    async def send_with_defaults(message: Message) -> None:
        if message["type"] == "http.response.start":
            fields = list(message["headers"])
            names = {name.lower() for name, _ in fields}
            added = [field for field in defaults if field[0] not in names]
            message = {**message, "headers": [*fields, *added]}
        await send(message)

    return send_with_defaults


def _limit_body(scope: Scope, receive: Receive, limit: int) -> Receive:
    """Return a `receive` that ends a body of more than `limit` bytes with a 413.

    Raises:
        TooLarge: the announced length is larger.
    """
    check_announced_length(Request(scope), limit)
    received = 0

    async def receive_part() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            # FastAPI answers 400 to another exception.
            raise HTTPException(413, build_too_large_body(limit).detail)
        return message

    return receive_part
