"""Scopes: `resource:action`, `resource:<id>:action`, `resource:*:action` (contract.md 6)."""

from __future__ import annotations

import re
from collections.abc import Set
from functools import lru_cache

__all__ = [
    "KNOWN_SCOPES",
    "RESOURCES_WITH_IDS",
    "alternatives",
    "covering",
    "covers",
    "held_ids",
    "known",
    "nearest",
    "satisfies",
    "well_formed",
]

RESOURCES_WITH_IDS = frozenset({"agents", "teams", "workflows", "sessions"})
"""The resources whose scopes may name one thing or `*`."""

KNOWN_SCOPES: tuple[str, ...] = (
    "agents:read",
    "agents:run",
    "audit:read",
    "config:read",
    "service_accounts:delete",
    "service_accounts:read",
    "service_accounts:write",
    "sessions:delete",
    "sessions:read",
    "sessions:write",
    "system:read",
    "teams:read",
    "teams:run",
    "workflows:read",
    "workflows:run",
)
"""Every scope that some operation asks for, without ids; the admin scope is configured."""

_ALIASES = {"config": ("config", "system")}
_scope = re.compile(
    r"[A-Za-z][A-Za-z0-9_-]{0,63}(?::(?:\*|[A-Za-z0-9._~@-]{1,128}))?:[A-Za-z][A-Za-z0-9_-]{0,63}"
)


def well_formed(scope: str) -> bool:
    """Whether `scope` has one of the three forms; others grant nothing."""
    return _scope.fullmatch(scope) is not None


def alternatives(resource: str, action: str, identifier: str | None = None) -> tuple[str, ...]:
    """The scopes of which any one suffices, the most specific first.

    Args:
        resource: `agents`, `sessions`, ...
        action: `read`, `run`, ...
        identifier: the one thing that is acted on; left out of the answer when no scope can name
            it, so that a path parameter never reaches a response header as it came.
    """
    scopes = [f"{name}:{action}" for name in _ALIASES.get(resource, (resource,))]
    if resource in RESOURCES_WITH_IDS:
        scopes.insert(0, f"{resource}:*:{action}")
        one = f"{resource}:{identifier}:{action}"
        if identifier not in (None, "*") and well_formed(one):
            scopes.insert(0, one)
    return tuple(scopes)


def satisfies(held: Set[str], resource: str, action: str, identifier: str | None = None) -> bool:
    """Whether the scopes `held` allow `action` on `resource`, or on its one `identifier`."""
    if not held.isdisjoint(_general(resource, action)):
        return True
    if identifier is None:
        return False
    return not held.isdisjoint(alternatives(resource, action, identifier))


@lru_cache(maxsize=256)
def _general(resource: str, action: str) -> tuple[str, ...]:
    """The scopes that hold for every id: what most callers have, and found without its id."""
    return alternatives(resource, action)


def covers(held: Set[str], scope: str) -> bool:
    """Whether the scopes `held` allow all that a well-formed `scope` allows."""
    return covering(held, scope) is not None


def covering(held: Set[str], scope: str) -> str | None:
    """The one of the scopes `held` that allows all that a well-formed `scope` allows, or None."""
    resource, *rest = scope.split(":")
    known_as = (name for name, aliases in _ALIASES.items() if resource in aliases)
    identifier = rest[0] if len(rest) == 2 and rest[0] != "*" else None
    wide = alternatives(next(known_as, resource), rest[-1], identifier)
    return next((one for one in wide if one in held), None)


def held_ids(held: Set[str], resource: str, action: str) -> frozenset[str]:
    """The ids for which `held` has a scope of their own."""
    parts = (scope.split(":") for scope in held)
    return frozenset(
        part[1]
        for part in parts
        if len(part) == 3 and part[0] == resource and part[2] == action and part[1] != "*"
    )


def known(scope: str) -> bool:
    """Whether some operation asks for `scope`, with an id or `*` where one is allowed."""
    resource, *rest = scope.split(":")
    if len(rest) == 2 and resource in RESOURCES_WITH_IDS:
        return well_formed(scope) and f"{resource}:{rest[1]}" in KNOWN_SCOPES
    return scope in KNOWN_SCOPES


def nearest(scope: str, *others: str) -> str | None:
    """The scope that `scope` was probably meant to be, keeping its id; None: none is near.

    Args:
        scope: what was given.
        others: scopes that are known too, such as the admin scope.
    """
    import difflib

    parts = scope.split(":")
    asked = f"{parts[0]}:{parts[-1]}".lower()
    names = difflib.get_close_matches(asked, (*others, *KNOWN_SCOPES), n=1)
    if not names or len(parts) != 3 or names[0] in others:
        return names[0] if names else None
    resource, action = names[0].split(":")
    with_id = f"{resource}:{parts[1]}:{action}"
    return with_id if known(with_id) else names[0]
