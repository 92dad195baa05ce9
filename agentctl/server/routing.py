"""The route class of every operation, the dispatcher of requests, and faces.

The server is a Starlette application with its own router. FastAPI only makes the OpenAPI
document, in `openapi/document.py`, from the declarations of the operations (docs/decisions/0009).

A request passes, in this order: the match of its decoded path and method, the policy of the
matched operation, the parameters, the body, and the operation. So it is refused as 401, 403, 404,
422, in this order (docs/contract.md "Errors"), and no parameter is read before the caller is
authorized. There are no redirects, and an unknown path is a 404.

Faces are interfaces of other systems, served inside of the authentication, before the router. A
face adds no operation and no scope. Each of its requests is one of an operation, with the policy,
the audit entry and the cancel of that operation.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from inspect import Parameter, getdoc
from typing import Any, NamedTuple, cast

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from agentctl.auth import policy
from agentctl.auth.explain.checks import CHECKS
from agentctl.auth.principal import Principal
from agentctl.errors import (
    AgentctlError,
    BadRequest,
    CrossSiteRequest,
    InternalError,
    InvalidToken,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
    ValidationFailed,
)
from agentctl.interface.declarations import Header, Query, Signature, find_declared
from agentctl.interface.operations import ROUTES
from agentctl.interface.requests import SessionLocator
from agentctl.records.audit import AUTHENTICATE
from agentctl.records.kinds import KINDS
from agentctl.records.logs import RateLimitedLog, add_log_context
from agentctl.records.routes import Route as Place
from agentctl.records.routes import RouteMatch, RouteTable, has_encoded_slash
from agentctl.records.times import now
from agentctl.server.answers import CALLER_KEY, Call, error_response, revalidate
from agentctl.server.requests import Adapt, BodyFields, Parameters, RequestBody
from agentctl.service.audit_log import EntryCounter
from agentctl.store.repositories.audit import AuditRow

Endpoint = Callable[..., Awaitable[Response]]
Responses = Mapping[int | str, dict[str, Any]]
"""OpenAPI responses by status."""

BuildErrorResponse = Callable[[AgentctlError], Response]

RESPONSE_KEY = "agentctl.response"
"""Key of the response in the ASGI scope: its `status` is None until it starts, and `request_id`."""

_log = logging.getLogger("agentctl.server")
_limited_log = RateLimitedLog(_log)

_LOGGED_PATH_PARAMETERS = frozenset({"session_id", "run_id"})
"""Path parameters that log lines contain."""


class Operation(Route):
    """An operation of the HTTP interface. Its method and path are in `interface.operations.ROUTES`.

    Args:
        endpoint: the function that handles a call. Its arguments are the call, and the parameters
            and requests of the operation.
        result: type of the document; None for a response without one: no content, or events.
        name: operation id, the key of every table; by default the name of the endpoint.
        errors: error statuses, in addition to those of every operation.
        adapt_body: see `BodyFields`.
        responses: further OpenAPI responses, which replace generated ones.
        texts: summary and description; by default the first line of the docstring of `endpoint`.
        path_names: names of path parameters that the endpoint takes under another name.
        in_document: False if the OpenAPI document does not contain the operation.
        route: the method and the path; by default those of the operation in `ROUTES`.
        signature: the parameters; by default those of the endpoint after the call.

    Attributes:
        declared: its path, query and header parameters.
        parameters: the parser of these.
        body_fields: the parser of the parameters in its body; None: the endpoint reads the body.
        has_tag: True if its responses have an entity tag: reads of documents that need a token.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        tag: str,
        result: Any = None,
        name: str | None = None,
        status: int = 200,
        errors: tuple[int, ...] = (),
        body: RequestBody | None = None,
        adapt_body: Adapt | None = None,
        responses: Responses | None = None,
        texts: tuple[str, str] | None = None,
        path_names: Mapping[str, str] | None = None,
        in_document: bool = True,
        route: tuple[str, str] | None = None,
        signature: Signature | None = None,
    ) -> None:
        self.operation = name or cast(str, getattr(endpoint, "__name__"))  # noqa: B009
        method, template = route or ROUTES[self.operation]
        super().__init__(template, endpoint, name=template if route else self.operation)
        self.methods = {method}
        self.place = Place(method, template)
        self.tag = tag
        self.result = result
        self.status = status
        self.errors = errors
        self.body = body
        self.adapt_body = adapt_body
        self.responses = responses or {}
        first_line = (getdoc(endpoint) or "").partition("\n")[0]
        self.summary, self.description = texts or (first_line.rstrip("."), "")
        self.path_names = {each: each for each in self.param_convertors} | dict(path_names or {})
        self.include_in_schema = in_document
        public = isinstance(policy.POLICY.get(self.operation), policy.Public)
        self.has_tag = method == "GET" and result is not None and not public
        self.signature = signature or Signature(partial(endpoint, None))
        in_path = set(self.path_names.values())
        self.declared = list[Parameter]()
        in_body = list[Parameter]()
        for item in self.signature.parameters:
            place = find_declared(item.annotation, (Query, Header))
            (self.declared if item.name in in_path or place else in_body).append(item)
        self.parameters = Parameters(self.declared, self.path_names)
        self.body_fields = BodyFields(in_body, adapt_body) if in_body else None

    async def handle_call(self, call: Call) -> Response:
        """Authorize a call, read its parameters and execute the endpoint.

        A call that is refused before the endpoint runs is recorded in the audit log here; the
        operations record all others.

        Raises:
            AgentctlError: the request is refused, or failed.
        """
        path = call.scope["path_params"]
        caller = call.caller
        add_log_context(**{name: path[name] for name in path.keys() & _LOGGED_PATH_PARAMETERS})
        try:
            policy.authorize_request(caller.principal, caller.failure, self.operation, path)
            if not isinstance(policy.POLICY[self.operation], policy.Public):
                caller.count_request()
            return await self._call_endpoint(call, path)
        except (Unauthenticated, ClientDisconnect):
            raise
        except Exception as error:
            if caller.principal is not None:
                await call.operations.record_refusal(self.operation, path, error)
            raise

    async def _call_endpoint(self, call: Call, path: Mapping[str, str]) -> Response:
        scope = call.scope
        values, error = self.parameters.read(path, scope["query_string"], scope["headers"])
        try:
            if error is not None:
                raise error
            if self.body is not None and self.body_fields is not None:
                values |= self.body_fields.read(await self._read_body(call, values), values)
            arguments = self.signature.build_arguments(values)
            response: Response = await self.endpoint(call, **arguments)
            return revalidate(response, scope["headers"]) if self.has_tag else response
        except ValidationFailed:
            await _require_named_resources(call, values)
            raise

    async def _read_body(self, call: Call, values: Mapping[str, Any]) -> dict[str, Any]:
        assert self.body is not None
        try:
            return await self.body.read(call)
        except (BadRequest, UnsupportedMediaType):
            if call.scope["path_params"]:
                await _require_named_resources(call, values)
            raise


async def _require_named_resources(call: Call, values: Mapping[str, Any]) -> None:
    """Find the database, component, session, run and memory that an invalid request names.

    A resource that does not exist is reported before an invalid value (docs/contract.md "Errors").
    """
    path = call.scope["path_params"]
    operations = call.operations
    if "memory_id" in path:
        await operations.require_memory(path["memory_id"])
        return
    if "file_id" in path:
        await operations.require_file(path["file_id"], values.get("db_id"))
        return
    where = SessionLocator(*(values.get(name) for name in ("type", "user_id", "db_id", "table")))
    if "session_id" in path:
        if "run_id" in path:
            await operations.get_session_run(path["session_id"], path["run_id"], where)
        else:
            await operations.require_session(path["session_id"], where)
        return
    operations.require_database(where)
    for kind, names in KINDS.items():
        if names.id_field in path:
            component_id = path[names.id_field]
            if "approval_id" in path:
                await operations.require_approval(kind, component_id, path["approval_id"])
                return
            operations.require_component(kind, component_id)
            if "run_id" in path:
                session_id = values.get("session_id")
                await operations.require_run(kind, component_id, path["run_id"], session_id)


def check_routes(routes: Iterable[BaseRoute]) -> list[Operation]:
    """Return the routes as operations; RuntimeError for one without a row in the policy table."""
    operations = list[Operation]()
    for route in routes:
        if not isinstance(route, Operation) or route.operation not in policy.POLICY:
            raise RuntimeError(f"no policy for {route!r}: the server must not start with it")
        operations.append(route)
    return operations


class Dispatcher:
    """The ASGI application that finds the face or operation of a request and sends its errors.

    Args:
        otherwise: the application for scopes that are not HTTP, such as the lifespan.
        own_routes: the application for requests whose path no operation has (`server.own_routes`).
        faces: the interfaces of other systems, which come before the operations.
    """

    def __init__(
        self,
        routes: Iterable[Operation],
        otherwise: ASGIApp,
        own_routes: ASGIApp | None = None,
        faces: Sequence[Face] = (),
    ) -> None:
        self.routes = {route.name: route for route in routes}
        self.otherwise = otherwise
        self._own_routes = own_routes
        self._faces = faces
        self._table = RouteTable({name: route.place for name, route in self.routes.items()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.otherwise(scope, receive, send)
            return

        try:
            await self._respond(scope, receive, send)
        except ClientDisconnect:
            return
        except Exception as error:
            service = scope[CALLER_KEY].app_state.service
            if isinstance(error, Unauthenticated) and service is not None:
                count_rejection(service.hosting.audit_log.counter, error)
            await send_error_response(error, scope, receive, send, self._faces)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_below_root(scope)
        if (face := find_face(self._faces, path)) is not None:
            scope[CALLER_KEY].count_request()
            await face.respond(scope, receive, send)
            return

        match = self._table.find(scope["method"], path)
        if match is None:
            if self._own_routes is None or self._table.methods(path):
                policy.refuse_path(self._table, path, scope[CALLER_KEY].failure)
            await self._own_routes(scope, receive, send)
            return

        scope["route"] = route = self.routes[match.operation]
        scope["path_params"] = match.path_params
        response = await route.handle_call(Call(scope, receive))
        await response(scope, receive, send)


async def send_error_response(
    error: Exception, scope: Scope, receive: Receive, send: Send, faces: Iterable[Face]
) -> None:
    """Send an error response of a face or ours; log an exception that is not ours and send a 500.

    Raises:
        Exception: the response had already started, so only the closed connection can show the
            error.
    """
    response = scope[RESPONSE_KEY]
    shown = error if isinstance(error, AgentctlError) else None
    if shown is None or (shown.status == 500 and not isinstance(shown, InternalError)):
        _log.error("request %s failed", response.request_id, exc_info=error)
        shown = InternalError()
    elif isinstance(shown, CrossSiteRequest):
        _limited_log.log("refused with 403: %s", shown.detail)
    elif isinstance(shown, Unavailable):
        # The same cause fails many requests: log it rarely.
        _limited_log.log("requests fail with 503: %s", shown.detail_with_cause)
        _log.debug("request %s: %s", response.request_id, shown.detail, exc_info=error.__cause__)
    elif shown.status >= 500:
        _log.warning("request %s: %s", response.request_id, shown.detail, exc_info=error.__cause__)
    if response.status is not None:
        raise error
    face = find_face(faces, path_below_root(scope))
    build_response = error_response if face is None else face.find_error_response(scope)
    await build_response(shown)(scope, receive, send)


def count_rejection(counter: EntryCounter, failure: Unauthenticated) -> None:
    """Count a 401 for the audit log, which does not record each.

    The causes are names of checks, so their number is fixed.
    """
    cause = "no credential"
    if isinstance(failure, InvalidToken):
        cause = failure.check if failure.check in CHECKS else "other"
    entry = AuditRow(
        at=now(),
        principal=None,
        via="http",
        operation=AUTHENTICATE,
        resource=None,
        outcome="denied",
        status=Unauthenticated.status,
        reason=cause,
        request_id=None,
    )
    counter.count((AUTHENTICATE, cause), entry)


def path_below_root(scope: Scope) -> str:
    """Return the path without `root_path`; the `path` of ASGI may include it or not."""
    if has_encoded_slash(scope.get("raw_path") or b""):
        return ""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    below = path.removeprefix(root)
    return below if below == "" or below.startswith("/") else path


class MatchedRoute(NamedTuple):
    """The route of a request, for the log."""

    operation: str


def match_route(call: Call, table: RouteTable) -> tuple[RouteMatch, Principal]:
    """Return the route of a request, and its caller.

    Raises:
        AgentctlError: no route serves the request, the caller is not identified, or a parameter of
            the path is not valid.
    """
    caller = call.caller
    path = path_below_root(call.scope)
    match = policy.find_operation(table, call.method, path, caller.failure)
    call.scope["route"] = MatchedRoute(match.operation)
    if caller.principal is None:
        raise caller.failure or Unauthenticated()
    policy.check_path_params(match.path_params)
    return match, caller.principal


class Face:
    """The base of faces.

    Attributes:
        paths, prefixes: the paths, decoded and below `root_path`, and the beginnings of such paths
            that the face serves.
    """

    paths: Collection[str] = ()
    prefixes: tuple[str, ...] = ()

    def serves(self, path: str) -> bool:
        return path in self.paths or path.startswith(self.prefixes)

    def find_error_response(self, scope: Scope) -> BuildErrorResponse:
        """Return the function that builds the error responses of a request of the face."""
        return error_response

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request of an identified or unknown caller, whose errors are sent by others.

        Raises:
            AgentctlError: the request is refused, or failed.
        """
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while the block is active. It can be entered once."""
        yield


def find_face(faces: Iterable[Face], path: str) -> Face | None:
    """Return the first face that serves a path; None if there is none."""
    return next((face for face in faces if face.serves(path)), None)
