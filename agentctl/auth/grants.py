"""Checks of the scopes of a new service account (docs/contract.md "Service accounts").

A caller cannot grant scopes that it does not have, and privileged scopes need an explicit flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentctl.auth import scopes as scope_names
from agentctl.auth.principal import Principal
from agentctl.errors import BadRequest, Forbidden, ValidationFailed

_PRIVILEGED_ACTIONS = frozenset({"write", "delete", "debug"})
_PRIVILEGED_RESOURCES = frozenset({"service_accounts"})


def check_known_scopes(scopes: Sequence[str], admin_scope: str) -> None:
    """Reject scopes that no operation requires: they would grant nothing.

    Raises:
        ValidationFailed: for the first unknown scope, with its index and a suggestion.
    """
    for place, scope in enumerate(scopes):
        if scope == admin_scope or scope_names.is_known_scope(scope):
            continue
        if not scope_names.is_well_formed(scope):
            forms = "resource:action or resource:<id>:action"
            raise ValidationFailed(f"scopes[{place}].scope must have the form {forms}")
        near = scope_names.suggest_scope(scope, admin_scope)
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
        scope
        for scope in scopes
        if scope == admin_scope or not scope_names.is_covered(principal.scopes, scope)
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
