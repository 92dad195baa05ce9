"""Scopes `resource:action`, `resource:<id>:action`, `resource:*:action`.

The rules are in docs/contract.md "Scopes".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from functools import lru_cache

from agentctl.auth.principal import Principal
from agentctl.errors import BadRequest, Forbidden, ValidationFailed
from agentctl.records.text import suggest_name

RESOURCES_WITH_IDS = frozenset(
    {"agents", "teams", "workflows", "approvals", "sessions", "memories"}
)
"""The resources whose scopes may have an id or `*`."""

KNOWN_SCOPES: tuple[str, ...] = (
    "agents:read",
    "agents:run",
    "approvals:read",
    "approvals:write",
    "audit:read",
    "config:read",
    "memories:delete",
    "memories:read",
    "memories:write",
    "runs:debug",
    "service_accounts:delete",
    "service_accounts:read",
    "service_accounts:write",
    "sessions:delete",
    "sessions:read",
    "sessions:write",
    "system:read",
    "teams:read",
    "teams:run",
    "usage:read",
    "webhooks:read",
    "webhooks:write",
    "workflows:read",
    "workflows:run",
)
"""Every scope that an operation requires, without ids; the admin scope is configured."""

_ALIASES = {"config": ("config", "system")}
_SCOPE_PATTERN = re.compile(
    r"[A-Za-z][A-Za-z0-9_-]{0,63}(?::(?:\*|[A-Za-z0-9._~@-]{1,128}))?:[A-Za-z][A-Za-z0-9_-]{0,63}"
)

_PRIVILEGED_ACTIONS = frozenset({"write", "delete", "debug"})
_PRIVILEGED_RESOURCES = frozenset({"service_accounts"})


def is_well_formed(scope: str) -> bool:
    """Return True if `scope` has one of the three forms; other texts grant nothing."""
    return _SCOPE_PATTERN.fullmatch(scope) is not None


def sufficient_scopes(resource: str, action: str, identifier: str | None = None) -> tuple[str, ...]:
    """Return the scopes of which any one is sufficient, the most specific first.

    Args:
        identifier: the id that the operation acts on. It is omitted if no scope can contain it, so
            that an unchecked path parameter never reaches a header field of a response.
    """
    scopes = [f"{name}:{action}" for name in _ALIASES.get(resource, (resource,))]
    if resource in RESOURCES_WITH_IDS:
        scopes.insert(0, f"{resource}:*:{action}")
        narrow = f"{resource}:{identifier}:{action}"
        if identifier not in (None, "*") and is_well_formed(narrow):
            scopes.insert(0, narrow)
    return tuple(scopes)


_scopes_for_all_ids = lru_cache(maxsize=256)(sufficient_scopes)


def is_action_allowed(
    held: Set[str], resource: str, action: str, identifier: str | None = None
) -> bool:
    """Return True if the scopes `held` allow `action` on `resource`, or on one `identifier`."""
    if not held.isdisjoint(_scopes_for_all_ids(resource, action)):
        return True
    if identifier is None:
        return False
    return not held.isdisjoint(sufficient_scopes(resource, action, identifier))


def is_covered(held: Set[str], scope: str) -> bool:
    """Return True if the scopes `held` allow all that a well-formed `scope` allows."""
    return find_covering_scope(held, scope) is not None


def find_covering_scope(held: Set[str], scope: str) -> str | None:
    """Return a scope of `held` that allows all that a well-formed `scope` allows, or None."""
    resource, *rest = scope.split(":")
    known_as = (name for name, aliases in _ALIASES.items() if resource in aliases)
    identifier = rest[0] if len(rest) == 2 and rest[0] != "*" else None
    wide = sufficient_scopes(next(known_as, resource), rest[-1], identifier)
    return next((candidate for candidate in wide if candidate in held), None)


def ids_in_scopes(held: Set[str], resource: str, action: str) -> frozenset[str]:
    """Return the ids that scopes of `held` name."""
    names = (scope.split(":") for scope in held)
    return frozenset(
        name[1]
        for name in names
        if len(name) == 3 and name[0] == resource and name[2] == action and name[1] != "*"
    )


def is_known_scope(scope: str) -> bool:
    """Return True if an operation requires `scope`, with an id or `*` where one is allowed."""
    resource, *rest = scope.split(":")
    if len(rest) == 2 and resource in RESOURCES_WITH_IDS:
        return is_well_formed(scope) and f"{resource}:{rest[1]}" in KNOWN_SCOPES
    return scope in KNOWN_SCOPES


def suggest_scope(scope: str, *others: str) -> str | None:
    """Return the known scope that is most similar to `scope`, with its id; None if none is.

    Args:
        others: additional known scopes, such as the admin scope.
    """
    parts = scope.split(":")
    general = f"{parts[0]}:{parts[-1]}".lower()
    near = suggest_name(general, (*others, *KNOWN_SCOPES), cutoff=0.6)
    if near is None or len(parts) != 3 or near in others:
        return near
    resource, action = near.split(":")
    with_id = f"{resource}:{parts[1]}:{action}"
    return with_id if is_known_scope(with_id) else near


def check_known_scopes(scopes: Sequence[str], admin_scope: str) -> None:
    """Reject scopes that no operation requires: they would grant nothing.

    Raises:
        ValidationFailed: for the first unknown scope, with its index and a suggestion.
    """
    for place, scope in enumerate(scopes):
        if scope == admin_scope or is_known_scope(scope):
            continue
        if not is_well_formed(scope):
            forms = "resource:action or resource:<id>:action"
            raise ValidationFailed(f"scopes[{place}].scope must have the form {forms}")
        near = suggest_scope(scope, admin_scope)
        guess = f": did you mean {near}?" if near else ""
        raise ValidationFailed(f"scopes[{place}].scope is not a known scope{guess}")


def check_held_scopes(scopes: Iterable[str], principal: Principal, admin_scope: str) -> None:
    """Reject scopes that allow more than those of the principal; an administrator has all.

    Raises:
        Forbidden: names the missing scopes.
    """
    if principal.admin:
        return
    missing = tuple(
        scope for scope in scopes if scope == admin_scope or not is_covered(principal.scopes, scope)
    )
    if missing:
        names = ", ".join(missing)
        raise Forbidden(
            f"Cannot grant scopes that you do not have: {names}", required_scopes=missing
        )


def check_privileged_scopes(scopes: Iterable[str], admin_scope: str, *, allowed: bool) -> None:
    """Reject privileged scopes unless they are explicitly allowed.

    Raises:
        BadRequest: names the privileged scopes.
    """
    privileged = [scope for scope in scopes if is_privileged_scope(scope, admin_scope)]
    if privileged and not allowed:
        names = ", ".join(privileged)
        raise BadRequest(f"Privileged scopes need allow_privileged_scopes: {names}")


def is_privileged_scope(scope: str, admin_scope: str) -> bool:
    """Return True for scopes to write, delete, administer or manage service accounts."""
    resource, _, action = scope.partition(":")
    return (
        scope == admin_scope
        or action.rpartition(":")[2] in _PRIVILEGED_ACTIONS
        or resource in _PRIVILEGED_RESOURCES
    )
