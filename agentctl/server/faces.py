"""Faces: interfaces of other systems, served inside of the authentication, before the router.

A face adds no operation and no scope. Each of its requests is one of an operation, with the policy,
the audit entry and the cancel of that operation.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentctl.auth import policy
from agentctl.auth.principal import Principal
from agentctl.errors import AgentctlError, Unauthenticated
from agentctl.records.routes import RouteMatch, RouteTable
from agentctl.server.routing import path_below_root, respond
from agentctl.server.state import CALLER_KEY, ERROR_RESPONSE_KEY, Call


class MatchedRoute(NamedTuple):
    """The route of a request, for the log."""

    operation: str


def match_route(call: Call, table: RouteTable) -> tuple[RouteMatch, Principal]:
    """Return the route of a request, and its caller.

    Raises:
        AgentctlError: no route serves the request, the caller is not identified, or a parameter of
            the path is not valid.
    """
    caller, path = call.caller, path_below_root(call.scope)
    match = policy.find_operation(table, call.method, path, caller.failure)
    call.scope["route"] = MatchedRoute(match.operation)
    if caller.principal is None:
        raise caller.failure or Unauthenticated()
    policy.check_path_params(match.path_params)
    return match, caller.principal


class Face:
    """The base of faces.

    Attributes:
        build_error: builds the responses of errors below the paths of the face; None for those of
            all other paths.
    """

    build_error: Callable[[AgentctlError], Response] | None = None

    def serves(self, path: str) -> bool:
        """Return True for a path, decoded and below `root_path`, that the face serves."""
        raise NotImplementedError

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

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Return an application that serves the face, and all other paths with `app`."""

        async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
            if not self._is_request(scope):
                await app(scope, receive, send)
                return

            async def execute() -> None:
                scope[CALLER_KEY].count_request()
                await self.respond(scope, receive, send)

            await respond(execute, scope, receive, send)

        return dispatch

    def wrap_errors(self, app: ASGIApp) -> ASGIApp:
        """Return an application around all others whose errors on the face have its form."""
        if self.build_error is None:
            return app

        async def set_error_response(scope: Scope, receive: Receive, send: Send) -> None:
            if self._is_request(scope):
                scope[ERROR_RESPONSE_KEY] = self.build_error
            await app(scope, receive, send)

        return set_error_response

    def _is_request(self, scope: Scope) -> bool:
        return scope["type"] == "http" and self.serves(path_below_root(scope))
