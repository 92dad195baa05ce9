"""The access of a user's routes: public routes, the caller, its scopes and its operations.

The names of this module are exported by `agentctl` (docs/own-routes.md "Access").
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import Depends
from starlette.requests import HTTPConnection, Request

from agentctl.auth import policy
from agentctl.auth.principal import Principal
from agentctl.errors import Forbidden, Unauthenticated
from agentctl.interface.operations import Operations
from agentctl.records.authorization import RESOURCES_WITH_IDS, is_well_formed
from agentctl.server.answers import CALLER_KEY, USER_ROUTE_KEY, Call

_PUBLIC_ATTRIBUTE = "__agentctl_public__"

_ID_PARAMETER = re.compile(r"\{(\w+)\}")

T = TypeVar("T")


def public(endpoint: T) -> T:
    """Serve the route of a function, or a mounted application, without a token.

    All other routes of the application answer 401 to a request without a valid token while
    authorization is enabled (docs/contract.md "Authorization").

    Returns:
        The same object, so that it can be used as a decorator, below or above the decorator of the
        route.

    Raises:
        TypeError: the object has no attributes, as a bound method.
    """
    try:
        setattr(endpoint, _PUBLIC_ATTRIBUTE, True)
    except AttributeError:
        raise TypeError(
            f"agentctl.public cannot mark {endpoint!r}: use a function or an application"
        ) from None
    return endpoint


def is_public(endpoint: object) -> bool:
    """Return True if `public` has marked the endpoint of a route."""
    return getattr(endpoint, _PUBLIC_ATTRIBUTE, False) is True


async def current_user(request: HTTPConnection) -> Principal:
    """Return the caller of a request: `user = Depends(agentctl.current_user)`.

    With authorization disabled it is an administrator without a subject.

    Raises:
        Unauthenticated: the request has no valid token, which a public route allows.
        Unavailable: the token cannot be verified now.
        RuntimeError: the application was not made by `agentctl.create_app`.
    """
    call = _get_call(request)
    if call.caller.principal is None:
        raise call.caller.failure or Unauthenticated()
    return call.caller.principal


def operations(request: HTTPConnection) -> Operations:
    """Return the operations of agentctl as the caller of a request.

    Each checks the scopes of the caller, shows its data only and writes its audit entry, as the
    operation of the HTTP API does. A caller of a public route without a token has no scopes. For
    example, in a route:

        sessions = await agentctl.operations(request).sessions.list(SessionFilter())
        return sessions.value

    Raises:
        RuntimeError: the application was not made by `agentctl.create_app`.
    """
    return _get_call(request).operations


def require(scope: str) -> Callable[[Request, Principal], Awaitable[Principal]]:
    """Return a dependency that checks a scope: `Depends(agentctl.require("sessions:read"))`.

    Its value is the caller. A refusal is the 401 or 403 of an operation, with the same body and
    the same audit entry.

    Args:
        scope: `resource:action`, also of resources of your own. The resources of agentctl may have
            an id: `agents:clerk:run`, or `agents:{agent_id}:run` with a parameter of the path.

    Raises:
        ValueError: the scope has none of these forms.
    """
    resource, *ids, action = scope.split(":") if ":" in scope else ("", "")
    has_known_form = is_well_formed(_ID_PARAMETER.sub("id", scope))
    if not has_known_form or (ids and resource not in RESOURCES_WITH_IDS):
        raise ValueError(
            f"agentctl.require: {scope!r} is not a scope; write resource:action, or with an id of"
            f" {', '.join(sorted(RESOURCES_WITH_IDS))} resource:id:action"
        )

    async def check_scope(
        request: Request, principal: Annotated[Principal, Depends(current_user)]
    ) -> Principal:
        identifier: str | None = None
        if ids:
            identifier = ids[0]
            parameter = _ID_PARAMETER.fullmatch(identifier)
            if parameter:
                identifier = str(request.path_params[parameter[1]])

        try:
            policy.authorize_scope(principal, resource, action, identifier)
        except Forbidden as error:
            path = {name: str(value) for name, value in request.path_params.items()}
            route = request.scope[USER_ROUTE_KEY]
            await _get_call(request).operations.access.record_refusal(route, path, error)
            raise
        return principal

    return check_scope


def _get_call(request: HTTPConnection) -> Call:
    if CALLER_KEY not in request.scope:
        raise RuntimeError("the application of this route was not made by agentctl.create_app")
    return Call(request.scope)
