"""Claims with scopes and roles, in words for an operator: what each grants, which are not read."""

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
_NAMESPACED = re.compile(r"[/:](?:(scopes?|permissions)|roles?|groups?)$")
_CLIENTS = "resource_access"


class UnreadClaim(NamedTuple):
    """A claim in which providers keep permissions, and the setting that would read it."""

    name: str
    value: Any
    setting: ClaimSetting


def find_unread_claims(claims: RawClaims, rules: ScopeRules) -> list[UnreadClaim]:
    """Return the claims that look like scopes or roles and are not read.

    Claims with known scopes are first, then claims with roles.
    """
    read_claims = (*rules.scopes_claims, *rules.roles_claims)
    unread = [
        UnreadClaim(name, value, _choose_setting(name, value, rules))
        for name, value in _list_candidates(claims, rules)
        if value and name not in read_claims and _CONFIGURABLE.fullmatch(name)
    ]
    return sorted(
        unread,
        key=lambda claim: (not _has_scopes(claim.value, rules), claim.setting != "roles_claim"),
    )


def _list_candidates(claims: RawClaims, rules: ScopeRules) -> Iterator[tuple[str, Any]]:
    for name in list_unread_claims(claims, rules):
        value = find_claim(claims, name)
        if name == _CLIENTS and isinstance(value, dict):
            paths = [f"{client}.roles" for client in value]
            yield from ((f"{name}.{path}", find_claim(value, path)) for path in paths)
        else:
            yield name, value
    for name, value in claims.items():
        if name not in KNOWN_CLAIMS and _NAMESPACED.search(name):
            yield name, value


def _choose_setting(name: str, value: Any, rules: ScopeRules) -> ClaimSetting:
    if _has_scopes(value, rules):
        return "scopes_claim"
    match = _NAMESPACED.search(name)
    default: ClaimSetting = "scopes_claim" if match and match[1] else "roles_claim"
    return KNOWN_CLAIMS.get(name, default)


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
    """Return `not read: scope ("agents:read")`."""
    return f"not read: {join_some([f'{name} ({quote_value(value)})' for name, value, _ in unread])}"


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
    return {
        name: _describe_role_claim(value, rules)
        for name in rules.roles_claims
        if (value := find_claim(claims, name)) is not None
    }


def _describe_role_claim(value: Any, rules: ScopeRules) -> str:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list):
        return f"{quote_value(value)} is not an array: it grants nothing"
    if len(entries) > MAXIMUM_SCOPES:
        return f"{len(entries)} entries are too many: none counts"

    texts = list(dict.fromkeys(role for role in entries if isinstance(role, str)))
    parts = [
        f"{quote_value(role)} grants {join_some(list(rules.roles[role])) or 'nothing'}"
        for role in texts
        if role in rules.roles
    ]

    unknown = [role for role in texts if role not in rules.roles]
    if unknown:
        parts.append(f"not in [authorization.roles]: {_quote_some(unknown)}")
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
