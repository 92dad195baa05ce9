"""The policy: one table with the requirement of each operation (docs/contract.md "Routes").

Routes, the OpenAPI document and the local backend read `POLICY`. A route without an entry stops the
start of the server, and a look-up of an unknown operation is a KeyError, never a grant.

`NeedsScope("sessions", "read")` requires `sessions:read` or a scope that includes it. In the same
form, `agents:run`, `approvals:write` and the others of `records.authorization.KNOWN_SCOPES` are
required. Data scoping is in `store.visibility`.

`find_operation`, `authorize_request` and `check_path_params` keep the order of errors 401, 403, 404
(docs/contract.md "Errors"): an unidentified caller cannot find out which paths exist or which
scopes an operation needs. `build_scope_table` is the reverse view: scopes with their operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn, TypedDict

from agentctl.auth.principal import Principal, ids_in_scopes, is_action_allowed, sufficient_scopes
from agentctl.errors import (
    INSUFFICIENT_SCOPES,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from agentctl.records.authorization import KNOWN_SCOPES, RESOURCES_WITH_IDS
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import RouteMatch, RouteTable, is_valid_segment, operation_ids
from agentctl.records.text import check_texts

AuthenticationFailure = Unauthenticated | Unavailable | None
"""Reason without a principal: no valid credential, or one that cannot be looked up now."""

Needs = Literal["scope", "admin", "token", "nothing"]


@dataclass(frozen=True, slots=True)
class Public:
    """No requirement; credentials are ignored."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Any identified caller, regardless of its scopes."""


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin scope: the operation is for operators."""


@dataclass(frozen=True, slots=True)
class NeedsScope:
    """A scope for a resource and an action.

    Attributes:
        id_param: the path parameter with the id that the operation acts on, or None.
        filters_list: True for a list that a caller with scopes for single ids gets in part.
    """

    resource: str
    action: str
    id_param: str | None = None
    filters_list: bool = False


Requirement = Public | Authenticated | Admin | NeedsScope


def _component_requirements(kind: ComponentKind) -> dict[str, Requirement]:
    names = KINDS[kind]
    ids = operation_ids(kind)
    read = NeedsScope(names.path, "read", names.id_field)
    run = NeedsScope(names.path, "run", names.id_field)
    return {
        ids.list: NeedsScope(names.path, "read", filters_list=True),
        ids.get: read,
        ids.get_versions: read,
        ids.get_version_diff: read,
        ids.create_run: run,
        ids.list_runs: read,
        ids.get_run: read,
        ids.cancel_run: run,
        ids.resume_run: run,
        ids.follow_run: read,
        ids.get_tool_call: read,
        ids.continue_run: run,
        ids.retry_run: run,
        # And the scope that starts a run of the component that goes on (`service.repeats`).
        ids.fork_run: read,
        ids.get_approval: NeedsScope("approvals", "read", names.id_field),
        ids.get_receipt: NeedsScope("approvals", "read", names.id_field),
        ids.decide_approval: NeedsScope("approvals", "write", names.id_field),
    }


_READ_SESSION = NeedsScope("sessions", "read", "session_id")
_WRITE_SESSION = NeedsScope("sessions", "write", "session_id")

POLICY: dict[str, Requirement] = {
    "get_api": Public(),
    "get_health": Public(),
    "get_info": Public(),
    "get_readiness": Public(),
    "get_console": Public(),
    "get_chat": Public(),
    "get_console_asset": Public(),
    "keep_console_token": Authenticated(),
    "restore_console_token": Public(),
    "forget_console_token": Public(),
    "start_console_sign_in": Public(),
    "finish_console_sign_in": Public(),
    "get_docs": Public(),
    "get_docs_asset": Public(),
    "get_oauth2_redirect": Public(),
    "get_openapi": Public(),
    "get_redoc": Public(),
    "get_config": NeedsScope("config", "read"),
    "get_models": NeedsScope("config", "read"),
    "get_deployment": Admin(),
    "get_me": Authenticated(),
    "explain_auth": Admin(),
    **{
        operation: rule
        for kind in KINDS
        for operation, rule in _component_requirements(kind).items()
    },
    "get_sessions": NeedsScope("sessions", "read"),
    "create_session": NeedsScope("sessions", "write"),
    "delete_sessions": NeedsScope("sessions", "delete"),
    "get_session_by_id": _READ_SESSION,
    "update_session": _WRITE_SESSION,
    "rename_session": _WRITE_SESSION,
    "delete_session": NeedsScope("sessions", "delete", "session_id"),
    "summarize_session": _WRITE_SESSION,
    "hold_session": Admin(),
    "release_session": Admin(),
    "get_idle_sessions": Admin(),
    "prune_sessions": Admin(),
    "export_session": _READ_SESSION,
    "get_session_runs": _READ_SESSION,
    "get_session_run": _READ_SESSION,
    "get_runs": NeedsScope("sessions", "read"),
    "get_run": NeedsScope("sessions", "read"),
    "get_run_model_calls": NeedsScope("sessions", "read"),
    "get_run_model_call": NeedsScope("sessions", "read"),
    "get_run_messages": NeedsScope("sessions", "read"),
    # And the scope that starts a run of its component (`service.run_messages`).
    "send_message": Authenticated(),
    "get_run_causes": NeedsScope("runs", "debug"),
    "get_failures": NeedsScope("runs", "debug"),
    "get_approvals": NeedsScope("approvals", "read", filters_list=True),
    "get_files": NeedsScope("sessions", "read"),
    "get_file": NeedsScope("sessions", "read"),
    "get_file_content": NeedsScope("sessions", "read"),
    "upload_file": NeedsScope("sessions", "write"),
    "delete_file": NeedsScope("sessions", "write"),
    "get_memories": NeedsScope("memories", "read"),
    "create_memory": NeedsScope("memories", "write"),
    "delete_memories": NeedsScope("memories", "delete"),
    "get_memory": NeedsScope("memories", "read", "memory_id"),
    "update_memory": NeedsScope("memories", "write", "memory_id"),
    "delete_memory": NeedsScope("memories", "delete", "memory_id"),
    "get_memory_topics": NeedsScope("memories", "read"),
    "get_user_data": Admin(),
    "get_user_rows": Admin(),
    "erase_user_data": Admin(),
    "get_budgets": NeedsScope("usage", "read"),
    "get_usage": NeedsScope("usage", "read"),
    "get_usage_overview": NeedsScope("usage", "read"),
    "create_service_account": NeedsScope("service_accounts", "write"),
    "list_service_accounts": NeedsScope("service_accounts", "read"),
    "revoke_service_account": NeedsScope("service_accounts", "delete"),
    "get_webhooks": NeedsScope("webhooks", "read"),
    "get_webhook_deliveries": NeedsScope("webhooks", "read"),
    "redeliver_webhook": NeedsScope("webhooks", "write"),
    "test_webhook": NeedsScope("webhooks", "write"),
    "enable_webhook": NeedsScope("webhooks", "write"),
    "get_halts": NeedsScope("halts", "read"),
    "get_halt": NeedsScope("halts", "read"),
    "create_halt": NeedsScope("halts", "write"),
    "end_halt": NeedsScope("halts", "write"),
    "get_audit": NeedsScope("audit", "read"),
    "get_audit_heads": NeedsScope("audit", "read"),
}


def required_scopes(operation: str, path_params: Mapping[str, str]) -> tuple[str, ...]:
    """Return the scopes of which any one allows `operation`, the most specific first.

    The admin scope, which is always sufficient, is never listed: a denial names the least scope.

    Args:
        operation: a key of POLICY.
        path_params: the decoded parameters of the matched route.
    """
    rule = POLICY[operation]
    if not isinstance(rule, NeedsScope):
        return ()
    return sufficient_scopes(rule.resource, rule.action, _path_identifier(rule, path_params))


def scope_forms(operation: str) -> tuple[str, ...]:
    """Return `required_scopes` for any id, for documentation: `agents:<agent_id>:run`, ..."""
    rule = POLICY[operation]
    general = required_scopes(operation, {})
    if not isinstance(rule, NeedsScope) or rule.id_param is None:
        return general
    return (f"{rule.resource}:<{rule.id_param}>:{rule.action}", *general)


def authorize(principal: Principal | None, operation: str, path_params: Mapping[str, str]) -> None:
    """Raise unless the caller satisfies the requirement of an operation.

    Args:
        principal: the caller, or None without a valid credential.

    Raises:
        Unauthenticated: the operation is not public and there is no principal.
        Forbidden: the caller has none of the required scopes.
    """
    rule = POLICY[operation]
    if isinstance(rule, Public):
        return
    if principal is None:
        raise Unauthenticated
    if principal.admin or isinstance(rule, Authenticated):
        return
    if isinstance(rule, NeedsScope):
        identifier = _path_identifier(rule, path_params)
        if is_action_allowed(principal.scopes, rule.resource, rule.action, identifier):
            return
        if rule.filters_list and ids_in_scopes(principal.scopes, rule.resource, rule.action):
            return
    raise _denial(principal, required_scopes(operation, path_params))


def authorize_scope(
    principal: Principal, resource: str, action: str, identifier: str | None = None
) -> None:
    """Raise Forbidden unless the caller has a scope, for a route that is no operation."""
    if principal.admin or is_action_allowed(principal.scopes, resource, action, identifier):
        return
    raise _denial(principal, sufficient_scopes(resource, action, identifier))


def list_open_operations(principal: Principal) -> list[str]:
    """Return the operations that a caller may call, for every id or for some, without public ones.

    The result is sorted by name.
    """
    return sorted(name for name, rule in POLICY.items() if _is_open(principal, rule))


def _is_open(principal: Principal, rule: Requirement) -> bool:
    if isinstance(rule, Public):
        return False
    if principal.admin or isinstance(rule, Authenticated):
        return True
    if not isinstance(rule, NeedsScope):
        return False
    if is_action_allowed(principal.scopes, rule.resource, rule.action):
        return True
    has_ids = rule.id_param is not None or rule.filters_list
    return has_ids and bool(ids_in_scopes(principal.scopes, rule.resource, rule.action))


def describe_grant(principal: Principal | None, match: RouteMatch) -> str:
    """Describe the grant of a caller that `authorize` let pass.

    Args:
        principal: the caller, or None for a public operation without a valid credential.
        match: the operation and its path parameters.
    """
    rule = POLICY[match.operation]
    if isinstance(rule, Public):
        return "public: credentials are ignored"
    assert principal is not None
    if isinstance(rule, Authenticated):
        return "allowed for every valid token"
    if principal.admin:
        return "the caller is an administrator"
    granting = [scope for scope in required_scopes(*match) if scope in principal.scopes]
    if granting:
        return f"granted by {granting[0]}"
    ids = sorted(allowed_ids(principal, match.operation) or ())
    return f"granted in part, for {', '.join(ids)}"


def allowed_ids(principal: Principal, operation: str) -> frozenset[str] | None:
    """Return the ids of a list that the caller may see; None for all of them.

    Raises:
        Forbidden: the caller has no scope for all ids and none for a single id.
    """
    rule = POLICY[operation]
    if isinstance(rule, Admin) and not principal.admin:
        raise _denial(principal, required_scopes(operation, {}))
    if principal.admin or not isinstance(rule, NeedsScope):
        return None
    if is_action_allowed(principal.scopes, rule.resource, rule.action):
        return None
    ids = (
        ids_in_scopes(principal.scopes, rule.resource, rule.action)
        if rule.filters_list
        else frozenset()
    )
    if not ids:
        raise _denial(principal, required_scopes(operation, {}))
    return ids


def operations_granted_by(scope: str) -> Iterator[str]:
    """Yield the operations that a scope grants, including lists that it grants in part.

    The admin scope grants all of them and is not known here. A malformed scope grants none.
    """
    parts = scope.split(":")
    identifier = parts[1] if len(parts) == 3 else None
    for operation, rule in POLICY.items():
        if not isinstance(rule, NeedsScope):
            continue
        named_id = identifier if rule.id_param or rule.filters_list else None
        if is_action_allowed({scope}, rule.resource, rule.action, named_id):
            yield operation


def _path_identifier(rule: NeedsScope, path_params: Mapping[str, str]) -> str | None:
    return path_params.get(rule.id_param) if rule.id_param is not None else None


def _denial(principal: Principal, scopes: tuple[str, ...]) -> Forbidden:
    return Forbidden(f"{INSUFFICIENT_SCOPES}{principal.unread_note}", required_scopes=scopes)


def find_operation(
    table: RouteTable, method: str, path: str, failure: AuthenticationFailure
) -> RouteMatch:
    """Return the operation of a request.

    Args:
        table: the routes of the served operations.
        method: the HTTP method, GET for HEAD.
        path: the decoded path, without a `root_path`.
        failure: the reason if there is no principal.

    Raises:
        Unauthenticated, Unavailable: no route matches, and there is no principal.
        MethodNotAllowed: the path has other methods.
        NotFound: the path does not exist.
    """
    match = table.find(method, path)
    if match is None:
        refuse_path(table, path, failure)
    return match


def refuse_path(table: RouteTable, path: str, failure: AuthenticationFailure) -> NoReturn:
    """Raise the error of a request that no route matches; see `find_operation`."""
    if failure is not None:
        raise failure
    methods = table.methods(path)
    if methods:
        raise MethodNotAllowed(allow=methods)
    raise NotFound("Not found")


def authorize_request(
    principal: Principal | None,
    failure: AuthenticationFailure,
    operation: str,
    path_params: Mapping[str, str],
) -> None:
    """Raise unless the policy allows the operation, as `authorize` does.

    Without a principal, `failure` is the reason, which is raised.
    """
    try:
        authorize(principal, operation, path_params)
    except Unauthenticated as refusal:
        raise failure or refusal from None


def authorize_call(
    principal: Principal | None, operation: str, path_params: Mapping[str, str]
) -> None:
    """Raise unless the policy allows an operation, and every database can store its ids.

    Raises:
        Unauthenticated, Forbidden: as `authorize`.
        ValidationFailed: an id contains NUL or a lone surrogate.
    """
    authorize(principal, operation, path_params)
    check_texts(**path_params)


def check_path_params(path_params: Mapping[str, str]) -> None:
    """Reject path parameters that cannot be ids; call it after `authorize_request`.

    Raises:
        NotFound: a parameter has control characters or invalid UTF-8, or is `.` or `..`.
    """
    if not all(map(is_valid_segment, path_params.values())):
        raise NotFound("Not found")


class GrantedOperation(TypedDict):
    """An operation: its id, method and path."""

    operation: str
    method: str
    path: str


class ScopeEntry(TypedDict):
    """A scope with its forms and the operations that it grants.

    `needs` is `scope`, `admin` for the admin scope, `token` for operations of any identified
    caller, or `nothing` for public operations; the last two have no scope.
    """

    needs: Needs
    scope: str | None
    forms: list[str]
    operations: list[GrantedOperation]


def build_scope_table(admin_scope: str) -> list[ScopeEntry]:
    """Return all scopes with their operations, ordered by name."""
    from agentctl.interface.operations import ROUTES

    def build_entry(
        needs: Needs, scope: str | None, forms: list[str], names: Iterable[str]
    ) -> ScopeEntry:
        operations = [
            GrantedOperation(operation=name, method=ROUTES[name].method, path=ROUTES[name].template)
            for name in names
        ]
        return ScopeEntry(needs=needs, scope=scope, forms=forms, operations=operations)

    def operations_with(*requirements: type[Requirement]) -> list[str]:
        return [name for name, rule in POLICY.items() if isinstance(rule, requirements)]

    return [
        *(
            build_entry("scope", scope, _scope_forms(scope), operations_granted_by(scope))
            for scope in KNOWN_SCOPES
        ),
        build_entry("admin", admin_scope, [admin_scope], operations_with(NeedsScope, Admin)),
        build_entry("token", None, [], operations_with(Authenticated)),
        build_entry("nothing", None, [], operations_with(Public)),
    ]


def _scope_forms(scope: str) -> list[str]:
    resource, action = scope.split(":")
    if resource not in RESOURCES_WITH_IDS:
        return [scope]
    return [scope, f"{resource}:*:{action}", f"{resource}:<id>:{action}"]
