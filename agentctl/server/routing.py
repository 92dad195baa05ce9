"""The route class of every operation, the entrance of the router, and faces.

The server is a FastAPI application. Each operation is an `APIRoute` of it, whose parameters and
results FastAPI describes in the OpenAPI document.

A request passes, in this order: the match of its decoded path and method, the policy of the
matched operation, the parameters, the body, and the operation. So it is refused as 401, 403, 404,
422, in this order (docs/contract.md "Errors"), and no parameter is read before the caller is
authorized. There are no redirects, and an unknown path is a 404.

Faces are interfaces of other systems, served inside of the authentication, before the routes. A
face adds no operation and no scope. Each of its requests is a request of an operation, with the
policy, the audit entry and the cancel of that operation.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, NamedTuple, cast

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
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
from agentctl.interface.operations import OPERATIONS, ROUTES
from agentctl.interface.requests import SessionLocator
from agentctl.interface.requirements import Public
from agentctl.interface.responses import Responses
from agentctl.records.audit import AUTHENTICATE
from agentctl.records.kinds import KINDS
from agentctl.records.logs import RateLimitedLog, add_log_context
from agentctl.records.routes import Route as Place
from agentctl.records.routes import RouteMatch, RouteTable, has_encoded_slash
from agentctl.records.times import now
from agentctl.server.answers import CALLER_KEY, USER_ROUTE_KEY, Call, error_response, revalidate
from agentctl.server.requests import Adapt, BodyFields, Parameters, RequestBody
from agentctl.service.audit_log import EntryCounter
from agentctl.store.repositories.audit import AuditRow

Endpoint = Callable[..., Awaitable[Response]]

BuildErrorResponse = Callable[[AgentctlError], Response]

RESPONSE_KEY = "agentctl.response"
"""Key of the response in the ASGI scope: its `status` is None until it starts, and `request_id`."""

_log = logging.getLogger("agentctl.server")
_limited_log = RateLimitedLog(_log)

_LOGGED_PATH_PARAMETERS = frozenset({"session_id", "run_id"})
"""Path parameters that log lines contain."""

_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


def _refuse_call() -> None:
    """Take the place of the endpoint in FastAPI's route: `Operation` calls its own."""
    raise NotImplementedError


class Operation(APIRoute):
    """An operation of the HTTP interface. Its method and path are in `interface.operations.ROUTES`.

    Args:
        endpoint: the function that handles a call. Its arguments are the call, and the parameters
            and requests of the operation.
        result: type of the document; None for a response without one: no content, or events.
        name: operation id, the key of every table; by default the name of the endpoint.
        errors: further error statuses, next to the statuses of every operation.
        adapt_body: see `BodyFields`.
        responses: further OpenAPI responses, which replace generated responses.
        texts: summary and description; by default the first line of the docstring of `endpoint`.
        path_names: names of path parameters that the endpoint takes under another name.
        in_document: False if the OpenAPI document does not contain the operation.
        route: the method and the path; by default the route of the operation in `ROUTES`.
        signature: the parameters; by default the parameters of the endpoint after the call.

    Attributes:
        execute: the endpoint.
        declared: its path, query and header parameters.
        parameters: the parser of these.
        body_fields: the parser of the parameters in its body; None: the endpoint reads the body.
        is_public: True if it needs no credential.
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
        self.place = Place(method, template)
        self.tag = tag
        self.body = body
        self.adapt_body = adapt_body
        self.execute = endpoint

        path_parameters = _PATH_PARAMETER.findall(template)
        self.path_names = {name: name for name in path_parameters} | dict(path_names or {})
        self.is_public = isinstance(policy.POLICY.get(self.operation), Public)
        self.has_tag = method == "GET" and result is not None and not self.is_public

        # A parameter that is neither in the path nor declared is a field of the body.
        self.signature = signature or Signature(partial(endpoint, None))
        in_path = set(self.path_names.values())
        self.declared = list[inspect.Parameter]()
        body_parameters = list[inspect.Parameter]()
        for parameter in self.signature.parameters:
            is_declared = find_declared(parameter.annotation, (Query, Header)) is not None
            if parameter.name in in_path or is_declared:
                self.declared.append(parameter)
            else:
                body_parameters.append(parameter)
        self.parameters = Parameters(self.declared, self.path_names)
        self.body_fields = BodyFields(body_parameters, adapt_body) if body_parameters else None

        first_line = (inspect.getdoc(endpoint) or "").partition("\n")[0]
        self.texts = texts or (first_line.rstrip("."), "")
        self.result = result
        self.errors = errors
        self.further_responses = responses or {}

        # Without its parameters and its result, for which FastAPI would build models that no
        # request uses: 15 MB in each process.
        super().__init__(
            template,
            _refuse_call,
            methods=[method],
            name=template if route else self.operation,
            tags=[tag],
            status_code=status,
            response_model=None,
            include_in_schema=in_document,
        )

    def describe(self) -> APIRoute:
        """Return the route with its parameters, its result and its texts, for the document."""
        from agentctl.server.openapi.descriptions import describe_operation
        from agentctl.server.openapi.parameters import build_signature_function

        description = describe_operation(
            self.operation,
            texts=self.texts,
            has_tag=self.has_tag,
            body=self.body,
            errors=self.errors,
            responses=self.further_responses,
        )
        return APIRoute(
            self.place.template,
            build_signature_function(self.declared, self.path_names),
            methods=[self.place.method],
            name=self.name,
            tags=[self.tag],
            status_code=self.status_code,
            response_model=self.result,
            **description,
        )

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return the match of a request, as FastAPI's router and libraries of users ask for it."""
        # The entrance has found that no operation has this path: to compare it again with each of
        # them would take longer than most routes of users.
        if USER_ROUTE_KEY in scope:
            return Match.NONE, {}
        return super().matches(scope)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that FastAPI calls for a request of this operation."""

        async def handle(request: Request) -> Response:
            return await self.handle_call(Call(request.scope, request.receive))

        return handle

    async def handle_call(self, call: Call) -> Response:
        """Authorize a call, read its parameters and execute the endpoint.

        A call that is refused before the endpoint runs is recorded in the audit log here; the
        operations record all other calls.

        Raises:
            AgentctlError: the request is refused, or failed.
        """
        path = call.scope["path_params"]
        caller = call.caller
        add_log_context(**{name: path[name] for name in path.keys() & _LOGGED_PATH_PARAMETERS})

        try:
            if not self.is_public:
                if caller.principal is None:
                    raise caller.failure or Unauthenticated()
                call.operations.access.admit(self.operation, path)
                caller.count_request()
            return await self._call_endpoint(call, path)
        except (Unauthenticated, ClientDisconnect):
            raise
        except Exception as error:
            if caller.principal is not None:
                await call.operations.access.record_refusal(self.operation, path, error)
            raise

    async def _call_endpoint(self, call: Call, path: Mapping[str, str]) -> Response:
        """Read the parameters and the body of an authorized call, and execute the endpoint."""
        scope = call.scope
        values, error = self.parameters.read(path, scope["query_string"], scope["headers"])
        try:
            if error is not None:
                raise error
            if self.body is not None and self.body_fields is not None:
                body = await self._read_body(call, values)
                values |= self.body_fields.read(body, values)

            arguments = self.signature.build_arguments(values)
            response = await self.execute(call, **arguments)
            return revalidate(response, scope["headers"]) if self.has_tag else response
        except ValidationFailed:
            # Of the parameters, of the body, or of the operation.
            await self._require_named_resources(call, values)
            raise

    async def _read_body(self, call: Call, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the body.

        Args:
            values: the parameters, which may name resources.
        """
        assert self.body is not None
        try:
            return await self.body.read(call)
        except (BadRequest, UnsupportedMediaType):
            if call.scope["path_params"]:
                await self._require_named_resources(call, values)
            raise

    async def _require_named_resources(self, call: Call, values: Mapping[str, Any]) -> None:
        """Find the database, component, session, run and memory that an invalid request names.

        A resource that does not exist is reported before an invalid value (docs/contract.md
        "Errors").
        """
        path = call.scope["path_params"]
        operations = call.operations
        if "memory_id" in path:
            await operations.memories.require(path["memory_id"])
            return
        if "file_id" in path:
            await operations.files.require(path["file_id"], values.get("db_id"))
            return

        where = SessionLocator(
            *(values.get(name) for name in ("type", "user_id", "db_id", "table"))
        )
        if "session_id" in path:
            if "run_id" in path:
                await operations.sessions.get_run(path["session_id"], path["run_id"], where)
            else:
                await operations.sessions.require(path["session_id"], where)
            return

        operations.sessions.require_database(where)

        # A run by its id alone, which gets a message: /runs/{run_id}/messages. Routes of interfaces
        # of other systems have no declaration.
        declared = OPERATIONS.get(self.operation)
        if declared is not None and declared.finds_run:
            await operations.runs.require_any(path["run_id"])
            return

        for kind, names in KINDS.items():
            if names.id_field not in path:
                continue

            component_id = path[names.id_field]
            if "approval_id" in path:
                await operations.approvals.require(kind, component_id, path["approval_id"])
                return
            operations.components.require(kind, component_id)
            if "run_id" in path:
                session_id = values.get("session_id")
                await operations.runs.require(kind, component_id, path["run_id"], session_id)


def list_operations(routes: Iterable[BaseRoute]) -> list[Operation]:
    """Return the operations among the routes of an application.

    Raises:
        RuntimeError: an operation has no row in the policy table.
    """
    operations = [route for route in routes if isinstance(route, Operation)]
    for operation in operations:
        if operation.operation not in policy.POLICY:
            raise RuntimeError(f"no policy for {operation!r}: the server must not start with it")
    return operations


class Entrance:
    """The first step of the router: it serves faces and operations, in front of the routes.

    FastAPI compares a path with one route after the other. Here a table finds the operation, with
    the methods of its path for a 405, and every request that nothing serves is a 401 first
    (decision 9).

    Args:
        operations: the operations of the application.
        faces: the interfaces of other systems, which come before the operations.
        user_app: the application for all other requests (`user_routes`), and for scopes that are
            not HTTP.
    """

    def __init__(
        self, operations: Iterable[Operation], faces: Sequence[Face], user_app: ASGIApp
    ) -> None:
        self._operations = {route.name: route for route in operations}
        self._table = RouteTable({name: route.place for name, route in self._operations.items()})
        self._faces = faces
        self._user_app = user_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._user_app(scope, receive, send)
            return

        with contextlib.suppress(ClientDisconnect):
            await self._respond(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_below_root(scope)
        face = find_face(self._faces, path)
        if face is not None:
            scope[CALLER_KEY].count_request()
            await face.respond(scope, receive, send)
            return

        match = self._table.find(scope["method"], path)
        if match is not None:
            route = self._operations[match.operation]
            scope["route"] = route
            scope["path_params"] = match.path_params
            await route.handle(scope, receive, send)
            return

        if self._table.methods(path):
            policy.refuse_path(self._table, path, scope[CALLER_KEY].failure)
        await self._user_app(scope, receive, send)


async def respond_to_error(request: Request, error: Exception) -> Response:
    """Return the response to an error of this package, as FastAPI's exception handler.

    A response of a face has the shape of that face.
    """
    assert isinstance(error, AgentctlError)
    scope = request.scope
    service = scope[CALLER_KEY].app_state.service
    if isinstance(error, Unauthenticated) and service is not None:
        count_rejection(service.hosting.audit_log.counter, error)
    return build_error_response(error, scope, scope["app"].faces)


async def respond_to_failure(request: Request, error: Exception) -> Response:
    """Return the response to any other exception; `AuthenticationMiddleware` logs it."""
    return _choose_error_response(request.scope, request.scope["app"].faces)(InternalError())


def build_error_response(error: Exception, scope: Scope, faces: Iterable[Face] = ()) -> Response:
    """Return the response to an exception, and log what the operator has to know about it."""
    request_id = scope[RESPONSE_KEY].request_id
    build_response = _choose_error_response(scope, faces)

    public_error = _find_public_error(error)
    if public_error is None:
        # The client gets neither its text nor its class.
        _log.error("request %s failed", request_id, exc_info=error)
        return build_response(InternalError())

    cause = public_error.__cause__
    if isinstance(public_error, CrossSiteRequest):
        _limited_log.log("refused with 403: %s", public_error.detail)
    elif isinstance(public_error, Unavailable):
        # The same cause fails many requests: log it rarely.
        _limited_log.log("requests fail with 503: %s", public_error.detail_with_cause)
        _log.debug("request %s: %s", request_id, public_error.detail, exc_info=cause)
    elif public_error.status >= 500:
        _log.warning("request %s: %s", request_id, public_error.detail, exc_info=cause)

    return build_response(public_error)


def _find_public_error(error: Exception) -> AgentctlError | None:
    """Return an error that the client may see; None for a failure of the program."""
    if not isinstance(error, AgentctlError):
        return None
    if error.status == 500 and not isinstance(error, InternalError):
        return None
    return error


def _choose_error_response(scope: Scope, faces: Iterable[Face]) -> BuildErrorResponse:
    """Return the function that builds an error response in the shape that the client expects."""
    face = find_face(faces, path_below_root(scope))
    return error_response if face is None else face.find_error_response(scope)


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
    # `/apistore` is not below the root `/api`.
    return below if below == "" or below.startswith("/") else path


class MatchedRoute(NamedTuple):
    """The route of a request to a face, for the log."""

    operation: str
    """The id of the operation, which `AuthenticationMiddleware` reads."""


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
    """The base of faces. Paths are decoded and below `root_path`."""

    paths: Collection[str] = ()
    """The paths that the face serves."""

    prefixes: tuple[str, ...] = ()
    """The beginnings of further paths that it serves."""

    def serves(self, path: str) -> bool:
        """Return True if the face responds to requests of a path."""
        return path in self.paths or path.startswith(self.prefixes)

    def find_error_response(self, scope: Scope) -> BuildErrorResponse:
        """Return the function that builds the error responses of a request of the face."""
        return error_response

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request of an identified or unknown caller.

        Raises:
            AgentctlError: the request is refused, or failed. The application sends the response.
        """
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while the block is active. It can be entered once."""
        yield


def find_face(faces: Iterable[Face], path: str) -> Face | None:
    """Return the first face that serves a path; None if there is none."""
    return next((face for face in faces if face.serves(path)), None)
