"""The FastAPI application with the operations of agentctl and the routes of a user.

A request of an operation takes the same path as in the application without own routes: it never
reaches FastAPI (docs/decisions/0009). `OwnRoutes` serves the others. A route needs a valid token
unless `agentctl.public` marks it, and the token is checked before a parameter or body is read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import fastapi.routing
import orjson
from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.params import Depends
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Match, Mount, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentctl.config.load import load_settings
from agentctl.config.settings import Settings
from agentctl.errors import (
    AgentctlError,
    InternalError,
    InvalidConfiguration,
    NotFound,
    TooLarge,
    Unauthenticated,
)
from agentctl.records.routes import Route, RouteTable
from agentctl.server.app import ServedApplication, configure, get_app_state, running
from agentctl.server.own_routes.access import is_public
from agentctl.server.routing import Dispatcher, Operation
from agentctl.server.state import CALLER_KEY, OWN_ROUTE_KEY

_PAGE_POLICY = b"base-uri 'self'; frame-ancestors 'none'; object-src 'none'"
"""The default content security policy of a user's route: its pages may load scripts and styles."""

_PARAMETER = re.compile(r"\{[^}]*\}")

_log = logging.getLogger("agentctl.server")


def create_app(
    config: str | os.PathLike[str] | Settings | None = None,
    *,
    title: str = "agentctl",
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any] | None]]
    | None = None,
    dependencies: Sequence[Depends] | None = None,
) -> FastAPI:
    """Return a FastAPI application that serves agentctl, for routes of your own.

    Args:
        config: the path of the configuration file, relative to the current folder; or settings.
            None finds the file as the commands do (docs/contract.md "Configuration").
        title: the title of the OpenAPI document.
        lifespan: an async context manager that is active while a process serves; the databases of
            agentctl are open inside.
        dependencies: dependencies of all your routes.

    Raises:
        InvalidConfiguration: the first mistake of the configuration.
        TypeError: `config` is neither a path nor settings.
    """
    if not isinstance(config, (str, os.PathLike, Settings, type(None))):
        raise TypeError(f"config must be a path or Settings, not {type(config).__name__}")
    if not isinstance(config, Settings):
        config = load_settings(None if config is None else Path(config))
    return OwnApplication(config, title=title, lifespan=lifespan, dependencies=dependencies)


class OwnApplication(ServedApplication, FastAPI):
    """The application of `create_app`. Its own routes are those of the user."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        super().__init__(
            openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, **options
        )
        self.router.default = _refuse_unknown_path
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Serve another configuration, before the start: that of `create_app` with options."""
        self._operations = configure(self, settings)

    def build_dispatcher(self) -> Dispatcher:
        others = Router(lifespan=self._run_alone)  # it has no routes, so it closes WebSockets
        return Dispatcher(self._operations, otherwise=others, own_routes=OwnRoutes(self))

    @contextlib.asynccontextmanager
    async def _run_alone(self, app: object) -> AsyncIterator[Any]:
        """Serve below an ASGI server that is not `agentctl serve`."""
        async with running(self), self.router.lifespan_context(self) as state:
            yield state

    def check(self) -> None:
        """Check the routes before the start.

        Raises:
            InvalidConfiguration: a route can never be reached, because an operation has its path,
                or is a WebSocket, or has the operation id of an operation.
        """
        templates = {route.place.template: route for route in self._operations}
        table = RouteTable({path: Route("", path) for path in templates})
        names = {route.operation for route in self._operations}
        for route in list_routes(self):
            path = str(getattr(route, "path", ""))
            if getattr(route, "operation_id", None) in names:
                _refuse(f"{path} has the operation id of an operation: {route.operation_id}")
            if "WebSocket" in type(getattr(route, "original_route", route)).__name__:
                _refuse(f"{path} is a WebSocket, which agentctl does not serve")
            sample = _PARAMETER.sub("x", path)
            taken = table.find("", sample)
            if taken is not None:
                _refuse(f"{path} is taken by the operation {templates[taken.operation].operation}")
            is_mount = isinstance(getattr(route, "original_route", route), Mount)
            if any(face.serves(sample) for face in self.faces) or (
                is_mount and path and any(each.startswith(f"{path}/") for each in templates)
            ):
                _refuse(f"{path} is taken by agentctl, which serves paths like it")

    def build_document(self, operations: Sequence[Operation]) -> bytes:
        from agentctl.server.openapi.own_routes import add_own_routes

        document = orjson.loads(super().build_document(operations))
        enabled = get_app_state(self).settings.authorization.enabled
        return orjson.dumps(
            add_own_routes(document, self, list_routes(self), authorization=enabled)
        )

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of all operations and routes."""
        document: dict[str, Any] = orjson.loads(get_app_state(self).build_openapi_document())
        return document


def list_routes(app: FastAPI) -> Iterator[Any]:
    """Yield the routes of an application, with those of included routers, in the order of matches.

    Each has `matches` and, unless it is a `Host`, the whole `path`. Later releases of FastAPI keep
    included routers as one route, and list their routes by this function.
    """
    flatten = getattr(fastapi.routing, "iter_route_contexts", iter)
    yield from flatten(app.router.routes)


def _refuse(problem: str) -> None:
    raise InvalidConfiguration(
        f"The route {problem}", hint="choose another one, for example with a prefix: /shop"
    )


async def _refuse_unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound("Not found")


class OwnRoutes:
    """The ASGI application of the routes of a user.

    Args:
        app: its application, whose exception handlers and routes are complete.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        handlers = dict(app.exception_handlers)
        # As in FastAPI, the handler of one of these is for errors that no other handler takes.
        failures = [handlers.pop(key) for key in (500, Exception) if key in handlers]
        self._handlers_of_failures = dict(zip([Exception], failures, strict=False))
        self._handle = ExceptionMiddleware(AsyncExitStackMiddleware(app.router), handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request.

        Raises:
            AgentctlError: the request is refused, or failed.
            Exception: the route raised it.
        """
        endpoint, path = self._find_endpoint(scope)
        scope[OWN_ROUTE_KEY] = None if path is None else f"{scope['method']} {path}"
        caller = scope[CALLER_KEY]
        if not is_public(endpoint):
            if caller.principal is None:
                raise caller.failure or Unauthenticated()
            caller.count_request()
        limit = caller.app_state.settings.limits.body_bytes
        response = _OwnResponse(send, is_public=is_public(endpoint))
        receive = _limit_body(scope, receive, limit)
        try:
            await self._handle(scope, receive, response)
        except SystemExit:
            raise InternalError from None
        except AgentctlError:
            raise
        except Exception as error:
            if not self._handlers_of_failures or response.has_started:
                raise
            _log.error("request %s failed", caller.request_id, exc_info=error)
            failed = ExceptionMiddleware(_raise(error), self._handlers_of_failures)
            await failed(scope, receive, response)

    def _find_endpoint(self, scope: Scope) -> tuple[object, str | None]:
        """Return the endpoint that FastAPI will choose, and the path of its route; None: unknown.

        The routes are compared in the order of FastAPI, with its own comparison.
        """
        for route in list_routes(self._app):
            match, found = route.matches(scope)
            if match is Match.FULL:
                return found.get("endpoint"), getattr(route, "path", None) or ""
        return None, None


def _raise(error: Exception) -> ASGIApp:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    return fail


class _OwnResponse:
    """The ASGI `send` of a user's route: adds the header fields that the route has not set."""

    def __init__(self, send: Send, *, is_public: bool) -> None:
        self._send = send
        self._defaults = [(b"content-security-policy", _PAGE_POLICY)]
        if is_public:
            self._defaults.append((b"cache-control", b"no-cache"))
        self.has_started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            fields = list(message["headers"])
            names = {name.lower() for name, _ in fields}
            added = [field for field in self._defaults if field[0] not in names]
            message = {**message, "headers": [*fields, *added]}
        await self._send(message)


def _limit_body(scope: Scope, receive: Receive, limit: int) -> Receive:
    """Return a `receive` that ends a body of more than `limit` bytes with a 413.

    Raises:
        TooLarge: the announced length is larger.
    """
    text = f"The body is larger than {limit} bytes"
    announced = dict(scope["headers"]).get(b"content-length", b"")
    if announced.isdigit() and int(announced[:20]) > limit:
        raise TooLarge(text)
    received = 0

    async def receive_part() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413, text)  # FastAPI answers 400 to another exception
        return message

    return receive_part
