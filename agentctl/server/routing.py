"""What a request names: not found comes before what is wrong with a value (contract.md 2).

The one route class, and the dispatch to it.

A request meets, in this order: the match on its decoded path and method, the policy for the
matched operation, the parameters, the body, the port. So it is refused as 401, 403, 404, 422, in
that order (contract.md 2), and nothing of it is read before its caller may.

Endpoints are declared as FastAPI has them, which makes the OpenAPI document; they are answered
here. There are no redirects, and a path that no operation has is not found.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, cast

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from agentctl.auth import policy
from agentctl.errors import Unauthenticated, ValidationFailed
from agentctl.operations import SessionLocator
from agentctl.records.kinds import KINDS
from agentctl.records.log_context import add_log_context
from agentctl.records.routes import Route, RouteTable, has_encoded_slash
from agentctl.server.authentication import TrackedSend, send_error_response
from agentctl.server.parameters import Parameters
from agentctl.server.state import CALLER_KEY, Call

__all__ = ["Dispatcher", "Endpoint", "Operation", "check_routes", "require_named_resources"]


async def require_named_resources(call: Call, values: Mapping[str, Any]) -> None:
    """Look for the database, component, session and run that a refused request names.

    Args:
        call: of an operation that the policy allows.
        values: its parameters; a default stands for what could not be read.

    Raises:
        NotFound: one of them is not there for the caller.
    """
    path = call.scope["path_params"]
    where = SessionLocator(*(values.get(name) for name in ("type", "user_id", "db_id", "table")))
    if "session_id" in path:
        await _require_session(call, path, where)
    else:
        call.operations.require_database(where)
        await _require_component(call, path, values.get("session_id"))


async def _require_session(call: Call, path: Mapping[str, str], where: SessionLocator) -> None:
    if "run_id" in path:
        await call.operations.get_session_run(path["session_id"], path["run_id"], where)
    else:
        await call.operations.require_session(path["session_id"], where)


async def _require_component(call: Call, path: Mapping[str, str], session_id: str | None) -> None:
    for kind, names in KINDS.items():
        if names.id_field not in path:
            continue
        component_id = path[names.id_field]
        call.operations.require_component(kind, component_id)
        if "run_id" in path:
            await call.operations.require_run(kind, component_id, path["run_id"], session_id)


Endpoint = Callable[..., Awaitable[Response]]

_LOGGED_PATH_PARAMETERS = frozenset({"session_id", "run_id"})
"""Parameters of the path that lines of the log carry."""


class Operation(APIRoute):
    """An operation of the interface.

    Args:
        place: its method and path.
        endpoint: what answers; its name is the operation id, the key in every table.
        declared: what FastAPI is told beside.
    """

    def __init__(self, place: Route, endpoint: Endpoint, **declared: Any) -> None:
        name = endpoint.__name__
        super().__init__(
            place.template, endpoint, methods=[place.method], operation_id=name, **declared
        )
        names = frozenset(self.param_convertors)
        self.operation = name
        self.place = place
        self.parameters = Parameters(endpoint, names)
        self.app = self._respond

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What FastAPI calls where it routes by itself: the same way in."""
        return lambda request: self.answer(Call(request.scope, request.receive))

    async def answer(self, call: Call) -> Response:
        """Decide, read the parameters, and have the endpoint answer.

        What is wrong with a value is told only where what the request names is there. What is
        refused before the operation is asked for is recorded here; the rest is behind the port.

        Raises:
            AgentctlError: the request is refused.
        """
        path = call.scope["path_params"]
        add_log_context(**{name: path[name] for name in path.keys() & _LOGGED_PATH_PARAMETERS})
        try:
            policy.authorize_request(
                call.caller.principal, call.caller.failure, self.operation, path
            )
            return await self._answer(call, path)
        except (Unauthenticated, ClientDisconnect):
            raise
        except Exception as error:
            if call.caller.principal is not None:
                await call.operations.record_refusal(self.operation, path, error)
            raise

    async def _answer(self, call: Call, path: Mapping[str, str]) -> Response:
        scope = call.scope
        values, refusal = self.parameters.read(path, scope["query_string"], scope["headers"])
        try:
            if refusal is not None:
                raise refusal
            return await cast(Endpoint, self.endpoint)(call, **values)
        except ValidationFailed:
            await require_named_resources(call, values)
            raise

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.answer(Call(scope, receive))
        await response(scope, receive, send)


def check_routes(routes: Iterable[BaseRoute]) -> list[Operation]:
    """The routes as operations, every one with a row in the policy table.

    Raises:
        RuntimeError: a route is none of ours, or the policy does not know its operation.
    """
    operations = list[Operation]()
    for route in routes:
        if not isinstance(route, Operation) or route.operation not in policy.POLICY:
            raise RuntimeError(f"no policy for {route!r}: the server must not start with it")
        operations.append(route)
    return operations


class Dispatcher:
    """Finds the operation of a request and has it answered; refusals become answers here.

    Args:
        routes: the operations.
        otherwise: what is given all that is not HTTP (lifespan).
    """

    def __init__(self, routes: Iterable[Operation], otherwise: ASGIApp) -> None:
        self.routes = {route.operation: route for route in routes}
        self.otherwise = otherwise
        self._table = RouteTable({name: route.place for name, route in self.routes.items()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.otherwise(scope, receive, send)
            return
        caller = scope[CALLER_KEY]
        reply = TrackedSend(send)
        try:
            await self._find(scope).app(scope, receive, reply)
        except ClientDisconnect:
            return
        except Exception as error:
            if isinstance(error, Unauthenticated) and caller.door.refusals is not None:
                caller.door.refusals.count(error)
            await send_error_response(error, caller.request_id, reply, scope, receive)

    def _find(self, scope: Scope) -> Operation:
        """The operation that the request matches; its path parameters are put into the scope."""
        caller = scope[CALLER_KEY]
        path = _path_below_root(scope)
        match = policy.find_operation(self._table, scope["method"], path, caller.failure)
        route = self.routes[match.operation]
        scope["route"] = route
        scope["path_params"] = match.path_params
        return route


def _path_below_root(scope: Scope) -> str:
    """The path that routes are matched on: ASGI's `path` may begin with the `root_path` or not."""
    if has_encoded_slash(scope.get("raw_path") or b""):
        return ""
    path, root = cast(str, scope["path"]), cast(str, scope.get("root_path", ""))
    below = path.removeprefix(root)
    return below if below == "" or below.startswith("/") else path
