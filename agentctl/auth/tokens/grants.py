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
        """Return the rules of `[authorization]`.

        Without `roles_may_grant_admin` the admin scope is removed from every role, so that a group
        at the identity provider makes no one an administrator here.
        """
        roles: Mapping[str, tuple[str, ...]] = table.roles
        if not table.roles_may_grant_admin:
            roles = {
                role: tuple(scope for scope in scopes if scope != table.admin_scope)
                for role, scopes in table.roles.items()
            }

        return cls(
            admin_scope=table.admin_scope,
            scopes_claims=table.scopes_claim,
            prefix=table.scope_prefix,
            roles_claims=table.roles_claim,
            roles=roles,
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
    """A scope and the claim that grants it."""

    scope: str
    claim: str

    role: str | None = None
    """The role in the claim; None for a claim of scopes."""


def collect_scopes(members: Mapping[str, Any], rules: ScopeRules) -> frozenset[str]:
    """Return the scopes that the claims grant."""
    granted_scopes = list[str]()
    for name in rules.scopes_claims:
        granted_scopes += read_scopes(members, name, rules)
    for name in rules.roles_claims:
        for role in read_roles(members, name):
            granted_scopes += rules.roles.get(role, ())
    return frozenset(granted_scopes)


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
    entries = find_claim(members, name)
    if isinstance(entries, str) and name != SCOPES_CLAIM and entries.count(" ") < MAXIMUM_SCOPES:
        # One space separates two scopes, nothing else (RFC 6749 3.3, RFC 8693 4.2).
        entries = entries.split(" ")

    if not isinstance(entries, list) or len(entries) > MAXIMUM_SCOPES:
        return []

    scopes = [entry.removeprefix(rules.prefix) for entry in entries if isinstance(entry, str)]
    return [scope for scope in scopes if scope == rules.admin_scope or is_well_formed(scope)]


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
    present_claims = [
        name
        for name, first in _FIRST_PARTS.items()
        if first in members and find_claim(members, name)
    ]
    if not present_claims:
        return ()

    # With a dot at both ends, so that `roles` is read by `roles` and `roles.api`, not by `roles2`.
    read_paths = [f"{name}." for name in (*rules.scopes_claims, *rules.roles_claims)]
    return tuple(
        name
        for name in present_claims
        if not any(path.startswith(f"{name}.") for path in read_paths)
    )


def find_claim(members: Mapping[str, Any], name: str) -> Any:
    """Return the claim `name`, else the member of an object that a path names, else None.

    The parts of a path are separated by dots. A part may contain dots: at each level the longest
    part that is the name of an object counts, as in `resource_access.my.api.roles`.
    """
    if name in members:
        return members[name]

    parent = name.rpartition(".")[0]
    while parent:
        inner_members = members.get(parent)
        if isinstance(inner_members, Mapping):
            return find_claim(inner_members, name[len(parent) + 1 :])
        parent = parent.rpartition(".")[0]
    return None
