"""The principal: a verified caller, and what its scopes allow.

Scopes are `resource:action`, `resource:<id>:action` and `resource:*:action` (docs/contract.md
"Scopes").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from agentctl.errors import BadRequest, Forbidden, ValidationFailed
from agentctl.records.authorization import (
    RESOURCES_WITH_IDS,
    is_known_scope,
    is_well_formed,
    suggest_scope,
)

Via = Literal["http", "local"]
"""A request to the server, or a command in local mode."""


@dataclass(frozen=True)
class Principal:
    """An identified caller, which all requests with one token share."""

    subject: str | None
    """The `sub` of the token (docs/contract.md "Claims"), exposed as `user_id`, or None."""

    scopes: frozenset[str] = frozenset()
    """Its well-formed scopes."""

    admin: bool = False
    """True if every operation is allowed."""

    sees_all_users: bool = False
    """True if it sees the data of all users, not only its own (docs/contract.md "Data scoping")."""

    via: Via = "http"
    """`http` for a request to the server, `local` for a command in local mode."""

    session_id: str | None = None
    """The `session_id` claim: the default session of runs and cancels."""

    caller: str | None = None
    """The real caller if it acts as the user `subject`, else None."""

    claims: bytes | None = field(default=None, repr=False, compare=False)
    """The verified claims of its JWT as a JSON object; None without a JWT."""

    unread_claims: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Claims of a JWT without scopes that may contain scopes, but are not configured as such."""

    @property
    def unread_note(self) -> str:
        """The end of the text of a denial: names of `unread_claims`, never their values."""
        if not self.unread_claims:
            return ""
        return f"; the server does not read these claims: {', '.join(self.unread_claims)}"

    @cached_property
    def actor(self) -> str:
        """The name of the subject in records: `subject`, or `anonymous`."""
        return self.subject if self.subject is not None else "anonymous"

    @cached_property
    def identity(self) -> str:
        """The name of the real caller in the audit log."""
        return self.actor if self.caller is None else self.caller


def anonymous_principal() -> Principal:
    """Return the caller with authorization off: an administrator without a name."""
    return Principal(subject=None, admin=True, sees_all_users=True)


def local_principal(user: str, *, acting_for: str | None = None) -> Principal:
    """Return the caller of local mode, an administrator (docs/contract.md "Local mode").

    Args:
        acting_for: the user of `--as-user`: reads are limited to its data and runs belong to it.
    """
    name = f"local:{user}"
    if acting_for is not None:
        return Principal(subject=acting_for, admin=True, via="local", caller=name)
    return Principal(subject=name, admin=True, sees_all_users=True, via="local")


_ALIASES = {"config": ("config", "system")}
"""The resources in scopes that mean the same, the usual name first."""

_PRIVILEGED_ACTIONS = frozenset({"write", "delete", "debug"})
_PRIVILEGED_RESOURCES = frozenset({"service_accounts"})


def sufficient_scopes(resource: str, action: str, identifier: str | None = None) -> tuple[str, ...]:
    """Return the scopes that are each sufficient, the most specific first.

    Args:
        identifier: the id that the operation acts on. It is omitted if no scope can contain it, so
            that an unchecked path parameter never reaches a header field of a response.
    """
    scopes = [f"{name}:{action}" for name in _ALIASES.get(resource, (resource,))]
    if resource in RESOURCES_WITH_IDS:
        scopes.insert(0, f"{resource}:*:{action}")
        narrow_scope = f"{resource}:{identifier}:{action}"
        if identifier not in (None, "*") and is_well_formed(narrow_scope):
            scopes.insert(0, narrow_scope)
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
    resource, *middle, action = scope.split(":")
    for usual_name, aliases in _ALIASES.items():
        if resource in aliases:
            resource = usual_name

    identifier = None
    if len(middle) == 1 and middle[0] != "*":
        identifier = middle[0]

    candidates = sufficient_scopes(resource, action, identifier)
    return next((candidate for candidate in candidates if candidate in held), None)


def ids_in_scopes(held: Set[str], resource: str, action: str) -> frozenset[str]:
    """Return the ids for which scopes of `held` allow `action` on `resource`."""
    ids = set[str]()
    for scope in held:
        parts = scope.split(":")
        if len(parts) == 3 and parts[0] == resource and parts[2] == action:
            ids.add(parts[1])
    return frozenset(ids - {"*"})


def check_known_scopes(scopes: Sequence[str], admin_scope: str) -> None:
    """Reject scopes that no operation requires: they would grant nothing.

    Raises:
        ValidationFailed: for the first unknown scope, with its index and a suggestion.
    """
    for index, scope in enumerate(scopes):
        if scope == admin_scope or is_known_scope(scope):
            continue
        if not is_well_formed(scope):
            forms = "resource:action or resource:<id>:action"
            raise ValidationFailed(f"scopes[{index}].scope must have the form {forms}")
        similar = suggest_scope(scope, admin_scope)
        suggestion = f": did you mean {similar}?" if similar else ""
        raise ValidationFailed(f"scopes[{index}].scope is not a known scope{suggestion}")


def check_held_scopes(scopes: Iterable[str], principal: Principal, admin_scope: str) -> None:
    """Reject scopes that the principal does not have itself; an administrator has all.

    Raises:
        Forbidden: names the missing scopes.
    """
    if principal.admin:
        return

    missing_scopes = tuple(
        scope for scope in scopes if scope == admin_scope or not is_covered(principal.scopes, scope)
    )
    if missing_scopes:
        names = ", ".join(missing_scopes)
        raise Forbidden(
            f"Cannot grant scopes that you do not have: {names}", required_scopes=missing_scopes
        )


def check_privileged_scopes(scopes: Iterable[str], admin_scope: str, *, allowed: bool) -> None:
    """Raise BadRequest for privileged scopes unless they are explicitly allowed."""
    privileged = [scope for scope in scopes if is_privileged_scope(scope, admin_scope)]
    if privileged and not allowed:
        names = ", ".join(privileged)
        raise BadRequest(f"Privileged scopes need allow_privileged_scopes: {names}")


def is_privileged_scope(scope: str, admin_scope: str) -> bool:
    """Return True for scopes to write, delete, administer or manage service accounts."""
    if scope == admin_scope:
        return True
    resource = scope.partition(":")[0]
    action = scope.rpartition(":")[2]
    return action in _PRIVILEGED_ACTIONS or resource in _PRIVILEGED_RESOURCES
