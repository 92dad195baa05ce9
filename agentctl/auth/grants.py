"""What may be granted to a service account, and by whom (contract.md 6).

Nobody grants what they do not hold, and what can change or delete things is granted on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentctl.auth import scopes as scope_names
from agentctl.auth.principal import Principal
from agentctl.errors import BadRequest, Forbidden, ValidationFailed

__all__ = [
    "check_held_scopes",
    "check_known_scopes",
    "check_privileged_scopes",
    "is_privileged_scope",
]

_PRIVILEGED_ACTIONS = frozenset({"write", "delete"})
_PRIVILEGED_RESOURCES = frozenset({"service_accounts"})


def check_known_scopes(scopes: Sequence[str], admin_scope: str) -> None:
    """Refuse scopes that no operation asks for: they would grant nothing.

    Raises:
        ValidationFailed: names the first of them by its place, and the known one nearest to it.
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
    """Refuse to grant what the principal may not do itself; an administrator may do everything.

    Raises:
        Forbidden: names what it does not hold.
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
            f"Cannot grant scopes that you do not hold: {names}", required_scopes=missing
        )


def check_privileged_scopes(scopes: Iterable[str], admin_scope: str, *, allowed: bool) -> None:
    """Refuse privileged scopes unless it is said that they are meant.

    Raises:
        BadRequest: names them.
    """
    privileged = [scope for scope in scopes if is_privileged_scope(scope, admin_scope)]
    if privileged and not allowed:
        names = ", ".join(privileged)
        raise BadRequest(f"Privileged scopes need allow_privileged_scopes: {names}")


def is_privileged_scope(scope: str, admin_scope: str) -> bool:
    """Whether a scope allows to change or delete something, or to manage service accounts."""
    resource, _, action = scope.partition(":")
    return (
        scope == admin_scope
        or action.rpartition(":")[2] in _PRIVILEGED_ACTIONS
        or resource in _PRIVILEGED_RESOURCES
    )
