"""The scopes that the claims of a token grant (docs/contract.md "Scopes").

The claims of `authorization.scopes_claim` have scopes. The claims of `authorization.roles_claim`
have roles or groups, whose scopes are in `[authorization.roles]`. A claim that is missing or of
another form grants nothing and is not an error. Names are compared exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agentctl.records.authorization import MAXIMUM_SCOPES, is_well_formed

if TYPE_CHECKING:
    from agentctl.config.settings import Authorization

ClaimSetting = Literal["scopes_claim", "roles_claim"]

SCOPES_CLAIM = "scopes"
"""The claim of `token mint`. It is an array: a text in it grants nothing."""


@dataclass(frozen=True, slots=True)
class ScopeRules:
    """The rules for scopes and roles."""

    admin_scope: str = "agent_os:admin"
    """A scope that counts even if it is not well-formed."""

    scopes_claims: tuple[str, ...] = (SCOPES_CLAIM,)
    """The names of claims with scopes, or paths (`find_claim`)."""

    prefix: str = ""
    """A prefix that is removed from scopes that begin with it."""

    roles_claims: tuple[str, ...] = ()
    """The names of claims with roles or groups, or paths."""

    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The scopes of each role."""

    @classmethod
    def from_settings(cls, table: Authorization) -> ScopeRules:
        """Return the rules of `[authorization]`; without its leave no role has the admin scope."""
        withheld = () if table.roles_may_grant_admin else (table.admin_scope,)
        roles = {
            role: tuple(scope for scope in scopes if scope not in withheld)
            for role, scopes in table.roles.items()
        }
        return cls(
            table.admin_scope, table.scopes_claim, table.scope_prefix, table.roles_claim, roles
        )


KNOWN_CLAIMS: Mapping[str, ClaimSetting] = {
    **dict.fromkeys((SCOPES_CLAIM, "scope", "scp", "permissions"), "scopes_claim"),
    **dict.fromkeys(
        ("roles", "groups", "entitlements", "authorities", "cognito:groups", "realm_access.roles"),
        "roles_claim",
    ),
    "resource_access": "roles_claim",
}
"""Claims that identity providers use for permissions, and the setting that reads each."""

_FIRST_PARTS = {name: name.partition(".")[0] for name in KNOWN_CLAIMS}


class ScopeOrigin(NamedTuple):
    """A scope, the claim that grants it, and the role in that claim; None for a claim of scopes."""

    scope: str
    claim: str
    role: str | None = None


def collect_scopes(members: Mapping[str, Any], rules: ScopeRules) -> frozenset[str]:
    """Return the scopes that the claims grant."""
    granted = [scope for name in rules.scopes_claims for scope in read_scopes(members, name, rules)]
    for name in rules.roles_claims:
        for role in read_roles(members, name):
            granted += rules.roles.get(role, ())
    return frozenset(granted)


def trace_scopes(members: Mapping[str, Any], rules: ScopeRules) -> Iterator[ScopeOrigin]:
    """Yield the scopes of `collect_scopes`, each once for each of its origins; for explanations."""
    for name in rules.scopes_claims:
        yield from (ScopeOrigin(scope, name) for scope in read_scopes(members, name, rules))
    for name in rules.roles_claims:
        for role in read_roles(members, name):
            yield from (ScopeOrigin(scope, name, role) for scope in rules.roles.get(role, ()))


def read_scopes(members: Mapping[str, Any], name: str, rules: ScopeRules) -> list[str]:
    """Return the entries of a claim of scopes that count, without the configured prefix.

    The claim is an array of at most MAXIMUM_SCOPES entries, or such a number of words in a text.
    """
    value = find_claim(members, name)
    if isinstance(value, str) and name != SCOPES_CLAIM and value.count(" ") < MAXIMUM_SCOPES:
        value = value.split(" ")  # RFC 6749 3.3, RFC 8693 4.2: one space, nothing else

    if not isinstance(value, list) or len(value) > MAXIMUM_SCOPES:
        return []

    prefix = rules.prefix
    if prefix:
        value = [entry.removeprefix(prefix) for entry in value if isinstance(entry, str)]

    return [
        scope
        for scope in value
        if isinstance(scope, str) and (scope == rules.admin_scope or is_well_formed(scope))
    ]


def read_roles(members: Mapping[str, Any], name: str) -> list[str]:
    """Return the roles of a claim: an array of at most MAXIMUM_SCOPES entries, or a text.

    A text is one role: the words of "Sales admin" are not roles.
    """
    value = find_claim(members, name)
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or len(value) > MAXIMUM_SCOPES:
        return []
    return list(dict.fromkeys(role for role in value if isinstance(role, str)))


def list_unread_claims(members: Mapping[str, Any], rules: ScopeRules) -> tuple[str, ...]:
    """Return the names in KNOWN_CLAIMS that a token has and that are not read, not even in part."""
    # Look up the first part in the dictionary first: each token without scopes is checked.
    present = [
        name
        for name, first in _FIRST_PARTS.items()
        if first in members and find_claim(members, name)
    ]
    read = [f"{name}." for name in (*rules.scopes_claims, *rules.roles_claims)] if present else []
    return tuple(name for name in present if not any(path.startswith(f"{name}.") for path in read))


def find_claim(members: Mapping[str, Any], name: str) -> Any:
    """Return the claim `name`, else the member of an object that a path names, else None.

    The parts of a path are separated by dots. A part may contain dots: at each level the longest
    part that is the name of an object counts, as in `resource_access.my.api.roles`.
    """
    if name in members:
        return members[name]
    part = name.rpartition(".")[0]
    while part:
        inner = members.get(part)
        if isinstance(inner, Mapping):
            return find_claim(inner, name[len(part) + 1 :])
        part = part.rpartition(".")[0]
    return None
