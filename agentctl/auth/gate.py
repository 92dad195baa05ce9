"""The order of refusals: 401, 403, 404 (contract.md 2). The server and explain go through here.

Who is not known learns nothing: neither which paths there are nor what an operation needs.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentctl.auth import policy
from agentctl.auth.principal import Principal
from agentctl.errors import MethodNotAllowed, NotFound, Unauthenticated, Unavailable
from agentctl.records.routes import Match, RouteTable, names_something

__all__ = ["admit", "locate", "require_names"]

Failure = Unauthenticated | Unavailable | None
"""Why nobody was identified: no credential that holds, or one that cannot be looked up now."""


def locate(table: RouteTable, method: str, path: str, failure: Failure) -> Match:
    """The operation of a request.

    Args:
        table: of the operations that are served.
        method: as it was sent, GET for HEAD.
        path: decoded, below a `root_path`.
        failure: why nobody was identified; None: somebody was.

    Raises:
        Unauthenticated, Unavailable: there is no such operation, and nobody was identified.
        MethodNotAllowed: the path has others.
        NotFound: nobody knows the path.
    """
    match = table.find(method, path)
    if match is not None:
        return match
    if failure is not None:
        raise failure
    methods = table.methods(path)
    if methods:
        raise MethodNotAllowed(allow=methods)
    raise NotFound("Not found")


def admit(
    principal: Principal | None,
    failure: Failure,
    operation: str,
    path_params: Mapping[str, str],
) -> None:
    """Let the caller pass if the policy allows the operation.

    Args:
        principal: the caller, or None when nobody was identified.
        failure: why nobody was.
        operation: a key of the policy.
        path_params: the parameters of the matched path.

    Raises:
        Unauthenticated, Unavailable: it is not public, and nobody was identified.
        Forbidden: the caller lacks the scopes.
    """
    try:
        policy.decide(principal, operation, path_params)
    except Unauthenticated as refusal:
        raise failure or refusal from None


def require_names(path_params: Mapping[str, str]) -> None:
    """Refuse a path with a part that can name nothing; comes behind `admit`.

    Raises:
        NotFound: it has one.
    """
    if not all(map(names_something, path_params.values())):
        raise NotFound("Not found")
