"""The FastAPI application with the operations of agentctl and the routes of a user.

A request of an operation takes the same path as in the application without own routes: it never
reaches FastAPI (docs/decisions/0009). `OwnRoutes` serves the others. A route needs a valid token
unless `agentctl.public` marks it, and the token is checked before a parameter or body is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import fastapi.routing
import orjson
from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.openapi.utils import get_openapi
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
    UsageError,
)
from agentctl.records.routes import Route, RouteTable
from agentctl.runtime.imports import UnusableObject, find_place, load_object
from agentctl.server.answers import CALLER_KEY, OWN_ROUTE_KEY
from agentctl.server.app import ServedApplication, configure, get_app_state, running
from agentctl.server.own_routes.access import is_public
from agentctl.server.routing import Dispatcher, Operation

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
        return Dispatcher(self._operations, others, OwnRoutes(self), self.faces)

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


SHUTDOWN_SECONDS = 8
"""Time for the lifespan of the user to end."""


def load_application(reference: str) -> OwnApplication:
    """Import the application that `module:name` names, from the current folder or an installation.

    Raises:
        UsageError: the module cannot be imported, or has no application of `agentctl.create_app`.
        AgentctlError: the error of `create_app`.
    """
    try:
        app = load_object(reference, Path.cwd(), "in the current folder")
    except UnusableObject as failure:
        if isinstance(failure.__cause__, AgentctlError):
            raise failure.__cause__ from None
        raise UsageError(
            f"--app {reference} cannot be used",
            cause=failure.what,
            hint=failure.hint or "name a module and its application: --app my_module:app",
        ) from None
    if not isinstance(app, OwnApplication):
        raise UsageError(
            f"--app {reference} is not an application of agentctl.create_app",
            cause=f"it is an object of the type {type(app).__name__}",
            hint="write in the module: app = agentctl.create_app()",
        )
    return app


@contextlib.asynccontextmanager
async def run_lifespan(app: OwnApplication) -> AsyncIterator[Mapping[str, Any]]:
    """Run the lifespan of the user while the block lasts; yield the state of its requests.

    Raises:
        InvalidConfiguration: its start failed.
        InternalError: its end failed, or took longer than `SHUTDOWN_SECONDS`.
    """
    lifespan = app.router.lifespan_context(app)
    try:
        state = await lifespan.__aenter__()
    except AgentctlError:
        raise
    except Exception as error:
        hint = "correct the lifespan of the application"
        raise InvalidConfiguration(_describe("start", error), hint=hint) from error
    try:
        yield state or {}
    finally:
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await lifespan.__aexit__(None, None, None)
        except Exception as error:
            raise InternalError(_describe("end", error)) from error


def _describe(step: str, error: Exception) -> str:
    place = find_place(error, Path.cwd())
    where = f" at {place}" if place else ""
    return f"the lifespan of the application failed at its {step}: {type(error).__name__}{where}"


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
