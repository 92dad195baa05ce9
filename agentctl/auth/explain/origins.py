"""Claims with scopes and roles, in words for an operator: their grants, and claims left unread."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from agentctl.auth.explain.credential import join_some, quote_value
from agentctl.auth.tokens.claims import RawClaims
from agentctl.auth.tokens.grants import (
    KNOWN_CLAIMS,
    SCOPES_CLAIM,
    ClaimSetting,
    ScopeOrigin,
    ScopeRules,
    find_claim,
    list_unread_claims,
    read_scopes,
)
from agentctl.records.authorization import MAXIMUM_SCOPES, is_known_scope

_CONFIGURABLE = re.compile(r"[!-~]{1,256}")
"""The names that `scopes_claim` and `roles_claim` accept."""

_NAMESPACED = re.compile(r"[/:](?:(scopes?|permissions)|roles?|groups?)$")
"""Names with a namespace, such as `https://example.com/roles`; group 1 is for scopes."""

_CLIENTS = "resource_access"
"""The claim of Keycloak with an object for each client of the realm."""


class UnreadClaim(NamedTuple):
    """A claim that looks like scopes or roles and is not read."""

    name: str
    """The name of the claim, or its path."""

    value: Any

    setting: ClaimSetting
    """The setting that would read it."""


def find_unread_claims(claims: RawClaims, rules: ScopeRules) -> list[UnreadClaim]:
    """Return the claims that look like scopes or roles and are not read.

    Claims with known scopes are first, then claims with roles.
    """
    read_claims = (*rules.scopes_claims, *rules.roles_claims)

    unread = list[UnreadClaim]()
    for name, value in _list_candidates(claims, rules):
        if value and name not in read_claims and _CONFIGURABLE.fullmatch(name):
            unread.append(UnreadClaim(name, value, _choose_setting(name, value, rules)))

    def rank(claim: UnreadClaim) -> tuple[bool, bool]:
        return not _has_scopes(claim.value, rules), claim.setting != "roles_claim"

    return sorted(unread, key=rank)


def _list_candidates(claims: RawClaims, rules: ScopeRules) -> Iterator[tuple[str, Any]]:
    for name in list_unread_claims(claims, rules):
        value = find_claim(claims, name)
        if name == _CLIENTS and isinstance(value, dict):
            for client in value:
                path = f"{client}.roles"
                yield f"{name}.{path}", find_claim(value, path)
        else:
            yield name, value

    for name, value in claims.items():
        if name not in KNOWN_CLAIMS and _NAMESPACED.search(name):
            yield name, value


def _choose_setting(name: str, value: Any, rules: ScopeRules) -> ClaimSetting:
    if _has_scopes(value, rules):
        return "scopes_claim"
    if name in KNOWN_CLAIMS:
        return KNOWN_CLAIMS[name]
    match = _NAMESPACED.search(name)
    return "scopes_claim" if match and match[1] else "roles_claim"


def _has_scopes(value: Any, rules: ScopeRules) -> bool:
    scopes = list_scopes(value, rules)
    return any(scope == rules.admin_scope or is_known_scope(scope) for scope in scopes)


def list_scopes(value: Any, rules: ScopeRules) -> list[str]:
    """Return the texts of a value as scopes without the configured prefix."""
    texts = (text for text in split_value(value) if isinstance(text, str))
    return [text.removeprefix(rules.prefix) for text in texts]


def split_value(value: Any) -> list[Any]:
    """Return the entries of an array, or the words of a text, else nothing."""
    if isinstance(value, str):
        return value.split(" ")
    return value if isinstance(value, list) else []


def describe_unread(unread: list[UnreadClaim]) -> str:
    """Return a text such as `not read: scope ("agents:read")`."""
    claims = [f"{claim.name} ({quote_value(claim.value)})" for claim in unread]
    return f"not read: {join_some(claims)}"


def suggest_setting(unread: list[UnreadClaim], rules: ScopeRules) -> str:
    """Return the line of the configuration that reads the first claim."""
    name, _, setting = unread[0]
    if setting == "scopes_claim":
        names = json.dumps([*rules.scopes_claims, name])
        return f"set scopes_claim = {names} in [authorization]"
    names = json.dumps([*rules.roles_claims, name])
    return f"set roles_claim = {names} in [authorization], and scopes in [authorization.roles]"


def describe_claims(claims: RawClaims, rules: ScopeRules) -> str:
    """Describe what each claim of scopes or roles grants, and list the claims that are not read."""
    scopes = dict[str, str]()
    for name in rules.scopes_claims:
        value = find_claim(claims, name)
        if value is not None:
            scopes[name] = _describe_scopes(name, value, claims, rules)

    roles = describe_roles(claims, rules)
    parts = [f"{name}: {text}" for name, text in {**scopes, **roles}.items()]
    if not roles and rules.scopes_claims == (SCOPES_CLAIM,):
        # With the default configuration there is one claim: its name is understood.
        parts = list(scopes.values())

    unread = find_unread_claims(claims, rules)
    if unread:
        parts = [*(parts or ["none"]), describe_unread(unread)]

    return "; ".join(parts) or "none"


def _describe_scopes(name: str, value: Any, claims: RawClaims, rules: ScopeRules) -> str:
    if not isinstance(value, list) and (name == SCOPES_CLAIM or not isinstance(value, str)):
        return f"{quote_value(value)} is not an array: it grants nothing"
    entries = split_value(value)
    if len(entries) > MAXIMUM_SCOPES:
        return f"{len(entries)} entries are too many: none counts"

    valid = read_scopes(claims, name, rules)
    ignored = [
        entry
        for entry in entries
        if not isinstance(entry, str) or entry.removeprefix(rules.prefix) not in valid
    ]

    text = join_some(sorted(set(valid))) or "none"
    return f"{text}; not well-formed: {_quote_some(ignored)}" if ignored else text


def describe_roles(claims: RawClaims, rules: ScopeRules) -> dict[str, str]:
    """Describe what the roles of a token grant, by the names of their claims."""
    descriptions = dict[str, str]()
    for name in rules.roles_claims:
        value = find_claim(claims, name)
        if value is not None:
            descriptions[name] = _describe_role_claim(value, rules)
    return descriptions


def _describe_role_claim(value: Any, rules: ScopeRules) -> str:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list):
        return f"{quote_value(value)} is not an array: it grants nothing"
    if len(entries) > MAXIMUM_SCOPES:
        return f"{len(entries)} entries are too many: none counts"

    parts = list[str]()
    unknown_roles = list[str]()
    for role in dict.fromkeys(entry for entry in entries if isinstance(entry, str)):
        if role in rules.roles:
            scopes = join_some(list(rules.roles[role])) or "nothing"
            parts.append(f"{quote_value(role)} grants {scopes}")
        else:
            unknown_roles.append(role)

    if unknown_roles:
        parts.append(f"not in [authorization.roles]: {_quote_some(unknown_roles)}")
    return "; ".join(parts) or "none"


def _quote_some(values: list[Any]) -> str:
    return join_some(list(map(quote_value, values)))


def describe_origins(granted: Iterable[ScopeOrigin], scopes: Collection[str]) -> str:
    """Return the claims and roles that grant any of `scopes`, except the claim `scopes` itself.

    The text is empty, or begins with a comma: `, by the role "viewer" of groups`.
    """
    origins = list[str]()
    for origin in granted:
        if origin.scope not in scopes:
            continue
        if origin.role is not None:
            origins.append(f"the role {quote_value(origin.role)} of {origin.claim}")
        elif origin.claim != SCOPES_CLAIM:
            origins.append(f"the claim {origin.claim}")
    if not origins:
        return ""

    return f", by {join_some(list(dict.fromkeys(origins)))}"
