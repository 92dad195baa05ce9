"""The policy: the decision about a caller, by the requirement that an operation declares.

Routes, the OpenAPI document and the local backend read `POLICY` (docs/contract.md "Routes"). A
route without an entry stops the start of the server, and a look-up of an unknown operation is a
KeyError, unless the caller is an administrator. Data scoping is in `store.visibility`.

`find_operation`, `authorize_request` and `check_path_params` keep the order of errors 401, 403, 404
(docs/contract.md "Errors"): an unidentified caller cannot find out which paths exist or which
scopes an operation needs. `build_scope_table` is the reverse view: scopes with their operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Literal, NoReturn, TypedDict

from agentctl.auth.principal import Principal, ids_in_scopes, is_action_allowed, sufficient_scopes
from agentctl.errors import (
    INSUFFICIENT_SCOPES,
    NO_SUCH_PATH,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from agentctl.interface.requirements import Admin, Authenticated, NeedsScope, Public, Requirement
from agentctl.records.authorization import KNOWN_SCOPES, RESOURCES_WITH_IDS
from agentctl.records.routes import RouteMatch, RouteTable, is_valid_segment
from agentctl.records.text import check_texts

AuthenticationFailure = Unauthenticated | Unavailable | None
"""Reason without a principal: no valid credential, or one that cannot be looked up now."""

Needs = Literal["scope", "admin", "token", "nothing"]


class DeclaredRequirements(Mapping[str, Requirement]):
    """The requirements of all operations, as they are declared.

    The first look-up loads the declarations, which take longer than many reads of the operator.
    """

    def __getitem__(self, operation: str) -> Requirement:
        return _load_requirements()[operation]

    def __iter__(self) -> Iterator[str]:
        return iter(_load_requirements())

    def __len__(self) -> int:
        return len(_load_requirements())


@cache
def _load_requirements() -> Mapping[str, Requirement]:
    from agentctl.interface.operations import REQUIREMENTS

    return REQUIREMENTS


POLICY = DeclaredRequirements()
"""The requirement of each operation; see `agentctl.interface.requirements`."""


def required_scopes(operation: str, path_params: Mapping[str, str]) -> tuple[str, ...]:
    """Return the scopes that each allow `operation`, the most specific first.

    The admin scope, which is always sufficient, is never listed: a denial names the least scope.

    Args:
        operation: a key of POLICY.
        path_params: the decoded parameters of the matched route.
    """
    requirement = POLICY[operation]
    if not isinstance(requirement, NeedsScope):
        return ()
    return sufficient_scopes(
        requirement.resource, requirement.action, _path_identifier(requirement, path_params)
    )


def scope_forms(operation: str) -> tuple[str, ...]:
    """Return `required_scopes` for any id, for documentation: `agents:<agent_id>:run`, ..."""
    requirement = POLICY[operation]
    general = required_scopes(operation, {})
    if not isinstance(requirement, NeedsScope) or requirement.id_param is None:
        return general
    return (f"{requirement.resource}:<{requirement.id_param}>:{requirement.action}", *general)


def authorize(principal: Principal | None, operation: str, path_params: Mapping[str, str]) -> None:
    """Raise unless the caller satisfies the requirement of an operation.

    Args:
        principal: the caller, or None without a valid credential.

    Raises:
        Unauthenticated: the operation is not public and there is no principal.
        Forbidden: the caller has none of the required scopes.
    """
    # An administrator may call every operation, so its reads load no declarations.
    if principal is not None and principal.admin:
        return

    requirement = POLICY[operation]
    if isinstance(requirement, Public):
        return

    if principal is None:
        raise Unauthenticated
    if isinstance(requirement, Authenticated):
        return

    if isinstance(requirement, NeedsScope):
        resource = requirement.resource
        action = requirement.action
        identifier = _path_identifier(requirement, path_params)
        if is_action_allowed(principal.scopes, resource, action, identifier):
            return
        # A list is allowed with a scope for one id: it shows the entries of these ids.
        if requirement.filters_list and ids_in_scopes(principal.scopes, resource, action):
            return

    raise _build_denial(principal, required_scopes(operation, path_params))


def authorize_scope(
    principal: Principal, resource: str, action: str, identifier: str | None = None
) -> None:
    """Raise Forbidden unless the caller has a scope, for a route that is no operation."""
    if principal.admin or is_action_allowed(principal.scopes, resource, action, identifier):
        return
    raise _build_denial(principal, sufficient_scopes(resource, action, identifier))


def list_open_operations(principal: Principal) -> list[str]:
    """Return the operations that a caller may call for every id or for some ids, by name.

    Public operations are not listed.
    """
    return sorted(name for name, requirement in POLICY.items() if _is_open(principal, requirement))


def _is_open(principal: Principal, requirement: Requirement) -> bool:
    """Return True if the caller may call an operation that is not public, for any id."""
    if isinstance(requirement, Public):
        return False
    if principal.admin or isinstance(requirement, Authenticated):
        return True
    if not isinstance(requirement, NeedsScope):
        return False

    resource = requirement.resource
    action = requirement.action
    if is_action_allowed(principal.scopes, resource, action):
        return True
    if requirement.id_param is None and not requirement.filters_list:
        return False
    return bool(ids_in_scopes(principal.scopes, resource, action))


def describe_grant(principal: Principal | None, match: RouteMatch) -> str:
    """Describe the grant of a caller that `authorize` let pass.

    Args:
        principal: the caller, or None for a public operation without a valid credential.
        match: the operation and its path parameters.
    """
    requirement = POLICY[match.operation]
    if isinstance(requirement, Public):
        return "public: credentials are ignored"

    assert principal is not None
    if isinstance(requirement, Authenticated):
        return "allowed for every valid token"
    if principal.admin:
        return "the caller is an administrator"

    granting_scopes = [scope for scope in required_scopes(*match) if scope in principal.scopes]
    if granting_scopes:
        return f"granted by {granting_scopes[0]}"

    ids = sorted(allowed_ids(principal, match.operation) or ())
    return f"granted in part, for {', '.join(ids)}"


def allowed_ids(principal: Principal, operation: str) -> frozenset[str] | None:
    """Return the ids of a list that the caller may see; None for all of them.

    Raises:
        Forbidden: the caller has no scope for all ids and none for a single id.
    """
    if principal.admin:
        return None

    requirement = POLICY[operation]
    if isinstance(requirement, Admin):
        raise _build_denial(principal, required_scopes(operation, {}))
    if not isinstance(requirement, NeedsScope):
        return None
    if is_action_allowed(principal.scopes, requirement.resource, requirement.action):
        return None

    ids = frozenset[str]()
    if requirement.filters_list:
        ids = ids_in_scopes(principal.scopes, requirement.resource, requirement.action)
    if not ids:
        raise _build_denial(principal, required_scopes(operation, {}))
    return ids


def operations_granted_by(scope: str) -> Iterator[str]:
    """Yield the operations that a scope grants, including lists that it grants in part.

    The admin scope grants all of them and is not known here. A malformed scope grants none.
    """
    parts = scope.split(":")
    identifier = parts[1] if len(parts) == 3 else None
    for operation, requirement in POLICY.items():
        if not isinstance(requirement, NeedsScope):
            continue
        named_id = identifier if requirement.id_param or requirement.filters_list else None
        if is_action_allowed({scope}, requirement.resource, requirement.action, named_id):
            yield operation


def _path_identifier(requirement: NeedsScope, path_params: Mapping[str, str]) -> str | None:
    return path_params.get(requirement.id_param) if requirement.id_param is not None else None


def _build_denial(principal: Principal, scopes: tuple[str, ...]) -> Forbidden:
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
    raise NotFound(NO_SUCH_PATH)


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
    """A scope with its forms and the operations that it grants."""

    needs: Needs
    """`scope`, `admin` for the admin scope, `token` for operations of any identified caller, or
    `nothing` for public operations."""

    scope: str | None
    """The scope; None with the needs `token` and `nothing`."""

    forms: list[str]
    """The ways to write the scope, such as `agents:<id>:run`."""

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
        return [
            name for name, requirement in POLICY.items() if isinstance(requirement, requirements)
        ]

    return [
        *(
            build_entry("scope", scope, _list_forms(scope), operations_granted_by(scope))
            for scope in KNOWN_SCOPES
        ),
        build_entry("admin", admin_scope, [admin_scope], operations_with(NeedsScope, Admin)),
        build_entry("token", None, [], operations_with(Authenticated)),
        build_entry("nothing", None, [], operations_with(Public)),
    ]


def _list_forms(scope: str) -> list[str]:
    resource, action = scope.split(":")
    if resource not in RESOURCES_WITH_IDS:
        return [scope]
    return [scope, f"{resource}:*:{action}", f"{resource}:<id>:{action}"]
