"""One table: what each operation asks of its caller (contract.md 1).

Routes, the OpenAPI document and the local door read it; a route whose operation has no row stops
the start, and asking about one is a KeyError, never a pass.

The order of refusals: 401, 403, 404 (contract.md 2). The server and explain go through here.

Who is not known learns nothing: neither which paths there are nor what an operation needs.

Every scope and what it opens: the policy read the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

from agentctl.auth.principal import Principal
from agentctl.auth.scopes import (
    KNOWN_SCOPES,
    RESOURCES_WITH_IDS,
    alternatives,
    held_ids,
    satisfies,
    well_formed,
)
from agentctl.errors import Forbidden, MethodNotAllowed, NotFound, Unauthenticated, Unavailable
from agentctl.records.kinds import KINDS, Kind
from agentctl.records.routes import ROUTES, Match, RouteTable, names_something, operations_of

__all__ = [
    "POLICY",
    "Admin",
    "Authenticated",
    "Needs",
    "OpenedOperation",
    "Public",
    "Rule",
    "ScopeEntry",
    "admit",
    "allowed_ids",
    "decide",
    "locate",
    "opened_by",
    "operations_of",
    "require_names",
    "required_scopes",
    "scope_forms",
    "scope_table",
]


@dataclass(frozen=True, slots=True)
class Public:
    """Open to everybody; a credential is not even looked at."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Any identified caller, whatever its scopes."""


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin scope and nothing less: it shows what is nobody's but the operator's."""


@dataclass(frozen=True, slots=True)
class Needs:
    """A scope.

    Attributes:
        resource: first part of the scope.
        action: last part of the scope.
        id_param: the path parameter that names the one thing acted on, or None.
        listed: a list that callers with scopes for single ids get a part of.
    """

    resource: str
    action: str
    id_param: str | None = None
    listed: bool = False


Rule = Public | Authenticated | Admin | Needs


def _family(kind: Kind) -> dict[str, Rule]:
    names, ids = KINDS[kind], operations_of(kind)
    read = Needs(names.path, "read", names.id_field)
    run = Needs(names.path, "run", names.id_field)
    return {
        ids.list: Needs(names.path, "read", listed=True),
        ids.get: read,
        ids.create_run: run,
        ids.list_runs: read,
        ids.get_run: read,
        ids.cancel_run: run,
        ids.resume_run: run,
    }


def _session(action: str) -> Needs:
    return Needs("sessions", action, "session_id")


POLICY: dict[str, Rule] = {
    "get_api": Public(),
    "get_health": Public(),
    "get_info": Public(),
    "get_readiness": Public(),
    "get_docs": Public(),
    "get_docs_asset": Public(),
    "get_oauth2_redirect": Public(),
    "get_openapi": Public(),
    "get_redoc": Public(),
    "get_config": Needs("config", "read"),
    "get_models": Needs("config", "read"),
    "get_me": Authenticated(),
    "explain_auth": Admin(),
    **{operation: rule for kind in KINDS for operation, rule in _family(kind).items()},
    "get_sessions": Needs("sessions", "read"),
    "create_session": Needs("sessions", "write"),
    "delete_sessions": Needs("sessions", "delete"),
    "get_session_by_id": _session("read"),
    "update_session": _session("write"),
    "rename_session": _session("write"),
    "delete_session": _session("delete"),
    "get_session_runs": _session("read"),
    "get_session_run": _session("read"),
    "get_runs": Needs("sessions", "read"),
    "get_run": Needs("sessions", "read"),
    "create_service_account": Needs("service_accounts", "write"),
    "list_service_accounts": Needs("service_accounts", "read"),
    "revoke_service_account": Needs("service_accounts", "delete"),
    "get_audit": Needs("audit", "read"),
}


def required_scopes(operation: str, path_params: Mapping[str, str]) -> tuple[str, ...]:
    """The scopes of which any one allows `operation`, the most specific first.

    The admin scope always suffices too and is never listed: whoever is refused is told of the
    least that would help.

    Args:
        operation: a key of POLICY.
        path_params: the parameters of the matched route, decoded.
    """
    rule = POLICY[operation]
    if not isinstance(rule, Needs):
        return ()
    return alternatives(rule.resource, rule.action, _identifier(rule, path_params))


def scope_forms(operation: str) -> tuple[str, ...]:
    """What `required_scopes` answers for any id, for documentation: `agents:<agent_id>:run`, ..."""
    rule = POLICY[operation]
    general = required_scopes(operation, {})
    if not isinstance(rule, Needs) or rule.id_param is None:
        return general
    return (f"{rule.resource}:<{rule.id_param}>:{rule.action}", *general)


def decide(principal: Principal | None, operation: str, path_params: Mapping[str, str]) -> None:
    """Let the caller pass, or refuse.

    Args:
        principal: the caller, or None when no valid credential came.
        operation: a key of POLICY.
        path_params: the parameters of the matched route, decoded.

    Raises:
        Unauthenticated: the operation is not public and nobody is known.
        Forbidden: the caller holds none of the required scopes.
    """
    rule = POLICY[operation]
    if isinstance(rule, Public):
        return
    if principal is None:
        raise Unauthenticated
    if principal.admin or isinstance(rule, Authenticated):
        return
    if isinstance(rule, Needs) and _holds(principal, rule, path_params):
        return
    raise _refusal(operation, path_params)


def allowed_ids(principal: Principal, operation: str) -> frozenset[str] | None:
    """Which ids of a list the caller may see; None: all of them.

    Raises:
        Forbidden: it holds neither a scope for all nor for a single id.
    """
    rule = POLICY[operation]
    if isinstance(rule, Admin) and not principal.admin:
        raise _refusal(operation, {})
    if principal.admin or not isinstance(rule, Needs):
        return None
    if satisfies(principal.scopes, rule.resource, rule.action):
        return None
    ids = held_ids(principal.scopes, rule.resource, rule.action) if rule.listed else frozenset()
    if not ids:
        raise _refusal(operation, {})
    return ids


def opened_by(scope: str) -> Iterator[str]:
    """The operations that a scope opens by itself, lists of which it opens a part too.

    The admin scope opens all of them and is not known here.
    """
    if not well_formed(scope):
        return
    parts = scope.split(":")
    identifier = parts[1] if len(parts) == 3 else None
    for operation, rule in POLICY.items():
        if not isinstance(rule, Needs):
            continue
        one = identifier if rule.id_param or rule.listed else None
        if satisfies({scope}, rule.resource, rule.action, one):
            yield operation


def _holds(principal: Principal, rule: Needs, path_params: Mapping[str, str]) -> bool:
    identifier = _identifier(rule, path_params)
    if satisfies(principal.scopes, rule.resource, rule.action, identifier):
        return True
    return rule.listed and bool(held_ids(principal.scopes, rule.resource, rule.action))


def _identifier(rule: Needs, path_params: Mapping[str, str]) -> str | None:
    return path_params.get(rule.id_param) if rule.id_param is not None else None


def _refusal(operation: str, path_params: Mapping[str, str]) -> Forbidden:
    return Forbidden(
        "Insufficient scopes for this operation",
        required_scopes=required_scopes(operation, path_params),
    )


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
        decide(principal, operation, path_params)
    except Unauthenticated as refusal:
        raise failure or refusal from None


def require_names(path_params: Mapping[str, str]) -> None:
    """Refuse a path with a part that can name nothing; comes behind `admit`.

    Raises:
        NotFound: it has one.
    """
    if not all(map(names_something, path_params.values())):
        raise NotFound("Not found")


class OpenedOperation(TypedDict):
    """An operation: its id, and where it is."""

    operation: str
    method: str
    path: str


class ScopeEntry(TypedDict):
    """A scope with its forms, or what opens operations without one.

    `needs` is `scope`, `admin` for the admin scope, `token` for what every identified caller may,
    `nothing` for what is public; the last two have no scope.
    """

    needs: Literal["scope", "admin", "token", "nothing"]
    scope: str | None
    forms: list[str]
    operations: list[OpenedOperation]


def scope_table(admin_scope: str) -> list[ScopeEntry]:
    """The whole table, in the order of the scopes' names.

    Args:
        admin_scope: that of the configuration.
    """
    table = [
        ScopeEntry(
            needs="scope", scope=scope, forms=_forms(scope), operations=_entries(opened_by(scope))
        )
        for scope in KNOWN_SCOPES
    ]
    asking = [name for name, rule in POLICY.items() if isinstance(rule, Needs | Admin)]
    known = [name for name, rule in POLICY.items() if isinstance(rule, Authenticated)]
    public = [name for name, rule in POLICY.items() if isinstance(rule, Public)]
    admin = ScopeEntry(
        needs="admin", scope=admin_scope, forms=[admin_scope], operations=_entries(asking)
    )
    return [
        *table,
        admin,
        ScopeEntry(needs="token", scope=None, forms=[], operations=_entries(known)),
        ScopeEntry(needs="nothing", scope=None, forms=[], operations=_entries(public)),
    ]


def _forms(scope: str) -> list[str]:
    """The scope itself, and the forms of it that name all or one."""
    resource, action = scope.split(":")
    if resource not in RESOURCES_WITH_IDS:
        return [scope]
    return [scope, f"{resource}:*:{action}", f"{resource}:<id>:{action}"]


def _entries(operations: Iterable[str]) -> list[OpenedOperation]:
    return [
        OpenedOperation(operation=name, method=ROUTES[name].method, path=ROUTES[name].template)
        for name in operations
    ]
