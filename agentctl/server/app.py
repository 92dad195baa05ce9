"""The ASGI application: alone, under a `root_path`, or mounted in another application.

Its outermost layer identifies the caller and adds the common header fields.

It turns the Authorization header into a principal or a failure in the ASGI scope. The failure is
raised later, in `routing`, where the operation is known. With authorization off it first refuses
requests of other web sites (`origins`). Every response gets a new request id and the security
header fields, also after an unexpected exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.params import Depends
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentctl.config.load import load_settings
from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError, BadRequest, Unauthenticated, Unavailable
from agentctl.extensions import load_extensions
from agentctl.records.logs import (
    add_log_context,
    caller_trace,
    current_log_context,
    parse_traceparent,
    set_log_context,
)
from agentctl.records.text import new_id
from agentctl.server.access import public
from agentctl.server.answers import (
    CALLER_KEY,
    USER_ROUTE_KEY,
    AppState,
    BytesResponse,
    Caller,
    add_common_headers,
    error_response,
)
from agentctl.server.openapi import pages
from agentctl.server.openapi.served import build_served_document
from agentctl.server.origins import OriginGuard
from agentctl.server.routes import build_all_operations
from agentctl.server.routing import (
    RESPONSE_KEY,
    Entrance,
    Face,
    Operation,
    build_error_response,
    list_operations,
    respond_to_error,
    respond_to_failure,
)
from agentctl.server.user_routes import UserRoutes, check_routes, refuse_unknown_path
from agentctl.telemetry.log import FIELDS_ATTRIBUTE, FinishedRequest
from agentctl.work.event_loop import build_abandoned_outcome

_access_log = logging.getLogger("agentctl.access")

GUIDE = "guide"
"""The name and the path of the documentation site."""

_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""The name of a header field: a token of RFC 9110 5.6.2."""

_EXPOSED_HEADERS = (
    "ETag", "Retry-After", "X-Request-ID", "X-Run-ID", "X-Session-ID", "X-Ignored-Parameters",
    "Mcp-Session-Id", "WWW-Authenticate", "X-Trace-ID",
)  # fmt: skip

_SEVERAL_CREDENTIALS = re.compile(rb"bearer .*,\s*bearer ", re.IGNORECASE)

HeaderFields = Iterable[tuple[bytes, bytes]]
"""Names in lower case, and values, as ASGI has them."""


class _SentResponse:
    """The outermost ASGI `send`: adds the common header fields, and drops the body for HEAD.

    Attributes:
        status: status of the response; None until it starts: then no error can be sent.
        is_complete: True after its last part.
    """

    __slots__ = ("is_complete", "omits_body", "request_id", "send", "status")

    def __init__(self, send: Send, request_id: str, *, omits_body: bool) -> None:
        self.send = send
        self.request_id = request_id
        self.omits_body = omits_body
        self.status: int | None = None
        self.is_complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = add_common_headers(message["headers"], self.request_id)
            trace_id = current_log_context().get("trace_id")
            if trace_id is not None:
                message["headers"].append((b"x-trace-id", trace_id.encode("ascii")))
        else:
            self.is_complete = not message.get("more_body", False)
            if self.omits_body:
                message["body"] = b""
        await self.send(message)


class AuthenticationMiddleware:
    """Identifies the caller and adds the common header fields to the response."""

    def __init__(self, app: ASGIApp, state: AppState, faces: Sequence[Face] = ()) -> None:
        self.app = app
        self.state = state
        self._faces = faces
        settings = state.settings
        self._reads_traces = settings.tracing.enabled and settings.tracing.parent != "ignore"
        # With authorization a page of another site has no token.
        self._guard: OriginGuard | None = None
        if not settings.authorization.enabled:
            self._guard = OriginGuard(settings.server.host, settings.server.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        start = perf_counter()
        request_id = new_id()
        set_log_context(request_id=request_id)

        method = scope["method"]
        response = _SentResponse(send, request_id, omits_body=method == "HEAD")
        if method == "HEAD":
            # In a copy, because the HTTP protocol still reads the method HEAD.
            scope = {**scope, "method": "GET"}
        scope[RESPONSE_KEY] = response

        try:
            self.state.require_running()
            if self._guard is not None:
                self._guard.check(scope)

            scope[CALLER_KEY] = await self._identify_caller(scope["headers"], request_id)
            await self.app(scope, receive, response)

        except Exception as error:
            await self._end_failed(error, scope, receive, response)

        except asyncio.CancelledError:
            # The server ends and waits no longer; what the request has begun may be committed.
            if response.status is not None:
                raise
            await self._end_failed(build_abandoned_outcome(), scope, receive, response)

        finally:
            seconds = perf_counter() - start
            operation = getattr(scope.get("route"), "operation", None) or scope.get(USER_ROUTE_KEY)
            caller = scope.get(CALLER_KEY)
            identity = None if caller is None else caller.owner or None

            finished_request = FinishedRequest(
                operation, method, response.status, seconds, identity
            )
            for observe in self.state.request_observers:
                observe(finished_request)

    async def _end_failed(
        self, error: Exception, scope: Scope, receive: Receive, response: _SentResponse
    ) -> None:
        """Respond to an exception that no handler has taken, and log it.

        Raises:
            Exception: the response had already started, so only the closed connection can show the
                error.
        """
        # Starlette wraps the error of a response that has started.
        if response.status is not None and isinstance(error.__cause__, AgentctlError):
            error = error.__cause__
        # It also logs the error.
        answer = build_error_response(error, scope, self._faces)

        # The handler of all exceptions has responded, and has raised the exception again.
        if response.is_complete and not isinstance(error, AgentctlError):
            return
        if response.status is not None:
            raise error
        await answer(scope, receive, response)

    async def _identify_caller(self, headers: HeaderFields, request_id: str) -> Caller:
        """Return the caller of a request; without a valid credential, with the failure.

        Raises:
            BadRequest: the request has more than one credential.
        """
        assert self.state.verifier is not None
        try:
            principal = await self.state.verifier.identify(_get_authorization(headers))
        except (Unauthenticated, Unavailable) as error:
            return Caller(self.state, request_id, None, "", error)

        identity = principal.identity
        add_log_context(principal=identity)
        if self._reads_traces:
            _read_trace(headers)
        return Caller(self.state, request_id, principal, identity)


def _read_trace(headers: HeaderFields) -> None:
    """Take over the trace of an identified caller; several fields or a wrong one count as none."""
    values = [value for name, value in headers if name == b"traceparent"]
    trace = None
    if len(values) == 1:
        trace = parse_traceparent(values[0].decode("latin-1"))
    caller_trace.set(trace)
    if trace is not None:
        add_log_context(trace_id=trace.trace_id)


def _get_authorization(headers: HeaderFields) -> str | None:
    """Return the value of the Authorization header; None without the header.

    Raises:
        BadRequest: several fields, or several credentials in one field, as a proxy joins them.
            Programs disagree which of them counts (RFC 6750 3.1, `invalid_request`).
    """
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        return None

    if len(values) > 1 or (b"," in values[0] and _SEVERAL_CREDENTIALS.search(values[0])):
        raise BadRequest("The request has more than one credential")
    return values[0].decode("latin-1")


def log_request(request: FinishedRequest) -> None:
    """Write a line of the access log, with the fields of the log context.

    The line has the operation and not the path, because callers choose parts of the path.
    """
    if not _access_log.isEnabledFor(logging.INFO):
        return

    # The record is built by hand: `info` also looks up the calling function, which takes
    # 3 to 4 of the 15 microseconds of a line.
    record = logging.LogRecord(
        _access_log.name, logging.INFO, "", 0, "request finished", None, None
    )
    fields = {
        "operation": request.operation,
        "method": request.method,
        "status": request.status,
        "duration_ms": round(request.seconds * 1_000, 3),
        "via": request.via,
    }
    setattr(record, FIELDS_ATTRIBUTE, fields)
    _access_log.handle(record)


class CrossOriginMiddleware(CORSMiddleware):
    """Starlette's CORS middleware without cookies, with error responses of our shape.

    A page of an allowed origin may send any header field. Browsers, tracing and the clients of
    OpenAI, Anthropic and MCP add fields of their own, and a list of them is out of date with their
    next version. The origin is what decides: a field gives no right that its value does not have.
    """

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("DELETE", "GET", "HEAD", "PATCH", "POST"),
            allow_headers=("*",),
            expose_headers=_EXPOSED_HEADERS,
            max_age=600,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return a 204 with the allowed methods and fields, or a 400."""
        if not _has_field_names(request_headers.get("access-control-request-headers", "")):
            text = "Access-Control-Request-Headers is not a list of header names"
            return error_response(BadRequest(text))

        response = super().preflight_response(request_headers)
        answer = BytesResponse(b"", 204, None)
        if response.status_code >= 400:
            answer = error_response(BadRequest("Origin not allowed"))
        answer.raw_headers += [
            field
            for field in response.raw_headers
            if field[0].startswith(b"access-control-") or field[0] == b"vary"
        ]
        return answer


def _has_field_names(text: str) -> bool:
    """Return True for a list of header names, which is sent back to the browser as it is."""
    names = (name.strip(" \t") for name in text.split(","))
    return all(_FIELD_NAME.fullmatch(name) for name in names if name)


async def _redirect_to_guide(request: Request) -> Response:
    """Add the slash: the links of the site are relative to its folder."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/{GUIDE}/")


class Application(FastAPI):
    """The FastAPI application of the operations, to which a user adds routes."""

    faces: Sequence[Face] = ()
    """The interfaces of other systems; the first that serves a path responds."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        super().__init__(
            # The pages of the documentation are operations.
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            exception_handlers={AgentctlError: respond_to_error, Exception: respond_to_failure},
            **options,
        )
        self.router.default = refuse_unknown_path
        self._document_lock = threading.Lock()
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Serve a configuration, which may replace an earlier one; only before the start.

        Raises:
            RuntimeError: an operation has no row in the policy table.
        """
        operations = list_operations([*build_all_operations(), *pages.build_operations()])
        served = operations
        faces: list[Face] = []
        for extension in load_extensions():
            served = extension.adapt_operations(served, settings) or served
            face = extension.build_face(settings)
            if face is not None:
                faces.append(face)

        self.faces = faces
        self._document: bytes | None = None
        self.state.agentctl = AppState(settings, self.build_document)
        self.serve_operations(served)
        self._serve_guide(settings)

    def serve_operations(self, operations: Sequence[Operation]) -> None:
        """Replace the operations, which come before the routes of the user."""
        user_routes = [route for route in self.routes if not isinstance(route, Operation)]
        self.router.routes[:] = [*operations, *user_routes]

        # In front of the list of routes, as the middleware of a Starlette router.
        user_app = UserRoutes(self, self._serve_user_routes)
        self.router.middleware_stack = Entrance(operations, self.faces, user_app)

    def _serve_guide(self, settings: Settings) -> None:
        """Serve the documentation site at /guide, without a token, or nothing there."""
        self.router.routes[:] = [
            route for route in self.router.routes if getattr(route, "name", None) != GUIDE
        ]
        folder = settings.server.guide
        if folder is not None:
            site = StaticFiles(directory=folder, html=True, check_dir=False)
            self.mount(f"/{GUIDE}", public(site), name=GUIDE)
            self.add_route(f"/{GUIDE}", public(_redirect_to_guide), name=GUIDE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.root_path:
            scope["root_path"] = self.root_path
        # Not FastAPI's own method: where OpenTelemetry is installed it begins a span for each
        # request, with the `traceparent` of anybody. Here only the `traceparent` of an identified
        # caller counts, and a run has spans of its own (docs/observability.md).
        await Starlette.__call__(self, scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        state = get_app_state(self)
        stack = super().build_middleware_stack()
        origins = state.settings.server.cors_origins
        if origins:
            stack = CrossOriginMiddleware(stack, origins)
        return AuthenticationMiddleware(stack, state, self.faces)

    async def _serve_user_routes(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of a user's route, or the lifespan of an ASGI server."""
        if scope["type"] == "lifespan":
            await Router(lifespan=self._run)(scope, receive, send)
            return
        await self.router.app(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _run(self, app: object) -> AsyncIterator[Mapping[str, Any]]:
        """Run below an ASGI server that is not `agentctl serve`."""
        async with running(self), self.router.lifespan_context(self) as state:
            yield state or {}

    def check(self) -> None:
        """Check the routes before the start.

        Raises:
            InvalidConfiguration: a route of the user can never be reached, or is a WebSocket.
            RuntimeError: an operation has no row in the policy table.
        """
        check_routes(self, list_operations(self.routes), self.faces)

    def build_document(self) -> bytes:
        """Return the OpenAPI document without a base path, as JSON."""
        enabled = get_app_state(self).settings.authorization.enabled
        # Requests that come together wait for the first one.
        with self._document_lock:
            if self._document is None:
                self._document = build_served_document(self, authorization=enabled)
        return self._document

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of all operations and routes."""
        document: dict[str, Any] = orjson.loads(self.build_document())
        return document


def create_app(
    config: str | os.PathLike[str] | Settings | None = None,
    *,
    title: str = "agentctl",
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any] | None]]
    | None = None,
    dependencies: Sequence[Depends] | None = None,
) -> Application:
    """Return a FastAPI application that serves agentctl, for routes of your own.

    A mounted application has no lifespan: use `running` in the host's.

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
        RuntimeError: an operation has no row in the policy table.
    """
    if isinstance(config, Settings):
        settings = config
    elif config is None:
        settings = load_settings(None)
    elif isinstance(config, (str, os.PathLike)):
        settings = load_settings(Path(config))
    else:
        raise TypeError(f"config must be a path or Settings, not {type(config).__name__}")
    return Application(settings, title=title, lifespan=lifespan, dependencies=dependencies)


@contextlib.asynccontextmanager
async def running(app: Application) -> AsyncIterator[None]:
    """Open the databases of the application; at the end cancel live runs and close them.

        @contextlib.asynccontextmanager
        async def lifespan(host):
            async with agentctl.server.running(app):
                yield

    Raises:
        Unavailable: a database is missing, unreadable or not a database of agentctl.
        SchemaMismatch: the schema of a database is older or newer than this version.
        InvalidKey: the verification keys are rejected, or there are none.
        InvalidConfiguration: a tool or a route of the user cannot be used.
        RuntimeError: an operation has no row in the policy table.
    """
    from agentctl.service.service import Service

    app.check()
    state = get_app_state(app)
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(Service.open(state.settings, create=True))
        verifier = service.hosting.verifier()
        await service.prepare()

        state.service = service
        state.verifier = verifier
        state.request_observers = [log_request]
        for face in app.faces:
            await stack.enter_async_context(face.running())

        try:
            with verifier.watch_key_files():
                yield
        finally:
            state.service = None
            state.stopped = True


def get_app_state(app: FastAPI) -> AppState:
    """Return the state of an application of `create_app`."""
    state: AppState = app.state.agentctl
    return state
