"""What was probably meant: texts, scopes and paths that are nearly right.

Nothing is decided here; these are words for the operator about what was decided elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from agentctl.auth.policy import (
    POLICY,
    Authenticated,
    NeedsScope,
    Public,
    allowed_ids,
    required_scopes,
)
from agentctl.auth.principal import Principal
from agentctl.auth.scopes import is_well_formed, suggest_scope
from agentctl.records.routes import ROUTES, RouteMatch, RouteTable, has_encoded_slash

__all__ = [
    "decode_path",
    "describe_difference",
    "describe_grant",
    "explain_scopes",
    "find_unread_permissions",
    "quote_value",
    "routable_path",
    "suggest_path",
]

_MAXIMUM_SHOWN = 100
"""Characters of a value that are shown."""

_OTHER_CLAIMS = ("scope", "scp", "permissions", "roles", "groups", "authorities")
_NESTED_CLAIMS = (("realm_access", "roles"), ("resource_access", "roles"))
_SEPARATORS = re.compile(r"[:./\s]+")
_MAXIMUM_SENTENCES = 3
"""Sentences about one refusal."""


def quote_value(value: object) -> str:
    """A value of a token or a request as JSON in one line, cut where it is long.

    What could not be seen, or turns text around, is written as an escape.
    """
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():
        text = json.dumps(value)
    return text if len(text) <= _MAXIMUM_SHOWN else f"{text[:_MAXIMUM_SHOWN]}..."


def describe_difference(given: str, wanted: str) -> str | None:
    """In what small thing two texts differ; None: they are different altogether."""
    if given.strip() == wanted.strip():
        return "it has white space around it"
    if given.rstrip("/") == wanted.rstrip("/"):
        return "it differs by the slash at its end"
    if given.casefold() == wanted.casefold():
        return "it differs in upper and lower case"
    if _without_scheme(given) == _without_scheme(wanted):
        return "it differs in what stands before ://"
    if wanted and (given.startswith(wanted) or given.endswith(wanted)):
        return "there is more in it"
    if given and (wanted.startswith(given) or wanted.endswith(given)):
        return "it is only a part"
    return None


def _without_scheme(text: str) -> str:
    return text.partition("://")[2].rstrip("/") or text


def find_unread_permissions(claims: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Claims that other systems keep permissions in: name and value. They are not read here."""
    for name in _OTHER_CLAIMS:
        if name in claims:
            yield name, claims[name]
    for name, inner in _NESTED_CLAIMS:
        value = claims.get(name)
        if isinstance(value, dict) and value:
            yield (f"{name}.{inner}", value[inner]) if inner in value else (name, value)
    for name, value in claims.items():
        if re.search(r"[/:](?:scopes?|permissions|roles)$", name):
            yield name, value


def explain_scopes(
    given: Sequence[str], operation: str, path_params: Mapping[str, str], admin_scope: str
) -> list[str]:
    """What is nearly right among the scopes of a refused caller, a sentence each.

    Args:
        given: the scopes as they stand in the credential, malformed ones too.
        operation: that was refused.
        path_params: of the request.
        admin_scope: that of the configuration.
    """
    rule = POLICY[operation]
    found = list[str]()
    for scope in given:
        told = _explain_admin_scope(scope, admin_scope)
        if told is None and isinstance(rule, NeedsScope):
            told = _explain_scope(scope, operation, rule, path_params)
        if told is not None:
            found.append(told)
    return found[:_MAXIMUM_SENTENCES]


def _explain_admin_scope(scope: str, admin_scope: str) -> str | None:
    if scope.casefold().strip() == admin_scope.casefold():
        return (
            f"{quote_value(scope)} is not the admin scope {quote_value(admin_scope)}: "
            f"{_admin_difference(scope)}"
        )
    if scope.casefold() in ("admin", "*", "*:*", "agent_os:admin", "agent_os:*"):
        return (
            f"{quote_value(scope)} is not the admin scope, which is {quote_value(admin_scope)} here"
        )
    return None


def _admin_difference(scope: str) -> str:
    return (
        "there is white space around it" if scope != scope.strip() else "it is compared by its case"
    )


def _explain_scope(
    scope: str, operation: str, rule: NeedsScope, path_params: Mapping[str, str]
) -> str | None:
    needed = required_scopes(operation, path_params)
    for wanted in needed:
        small = (
            describe_difference(scope, wanted)
            if scope.casefold().strip() == wanted.casefold()
            else None
        )
        if small is not None:
            return f"{quote_value(scope)} is not {quote_value(wanted)}: {small}"
    if is_well_formed(scope):
        return _explain_well_formed(scope, rule, path_params)
    return _explain_malformed(scope, rule)


def _explain_well_formed(
    scope: str, rule: NeedsScope, path_params: Mapping[str, str]
) -> str | None:
    resource, *middle, action = scope.split(":")
    if (resource, action) == (rule.action, rule.resource):
        return f"{quote_value(scope)} has resource and action the other way round"
    if resource == rule.resource and action != rule.action:
        return f"{quote_value(scope)} allows {action}, not {rule.action}"
    if resource == rule.resource:
        return _explain_other_id(scope, middle[0] if middle else "*", rule, path_params)
    wanted = suggest_scope(scope)
    if wanted is not None and not middle and wanted == f"{rule.resource}:{rule.action}":
        return f"{quote_value(scope)} is no scope: {quote_value(wanted)} is meant"
    return None


def _explain_other_id(
    scope: str, other: str, rule: NeedsScope, path_params: Mapping[str, str]
) -> str:
    """It is for one thing, `other`, which is not what is asked for."""
    one = rule.resource.removesuffix("s")
    wanted = path_params.get(rule.id_param) if rule.id_param is not None else None
    if wanted is None:
        return f"{quote_value(scope)} is for one {one}, and this is about all of them"
    small = describe_difference(other, wanted)
    return f"{quote_value(scope)} is for another {one}, not {quote_value(wanted)}" + (
        f": {small}" if small else ""
    )


def _explain_malformed(scope: str, rule: NeedsScope) -> str | None:
    if "*" in scope and scope.startswith(rule.resource):
        star = f"{rule.resource}:*:{rule.action}"
        return (
            f"{quote_value(scope)} is not well-formed: * stands in the middle only, "
            f"{quote_value(star)}"
        )
    words = _SEPARATORS.split(scope.strip().casefold())
    if words[:1] == [rule.resource] and words[-1] == rule.action:
        return f"{quote_value(scope)} is not well-formed: its parts are joined with one : each"
    if rule.resource in words and rule.action in words:
        return f"{quote_value(scope)} is one text: each scope is an entry of its own"
    return None


def decode_path(target: str) -> str:
    """The path of a request target: decoded, without query and fragment."""
    return unquote(target.partition("#")[0].partition("?")[0])


def routable_path(target: str) -> str:
    """The path that a server matches for a request target; empty for what it takes for none."""
    raw = target.partition("#")[0].partition("?")[0]
    return "" if has_encoded_slash(raw.encode("utf-8", "surrogatepass")) else decode_path(target)


def suggest_path(table: RouteTable, method: str, path: str) -> str | None:
    """What is wrong with a path that nobody knows; None: nothing is near it."""
    candidates = {
        "there is no slash at the end": path.rstrip("/"),
        "there is one slash between two parts": re.sub(r"/+", "/", path),
        "paths are in lower case": path.lower(),
    }
    for told, candidate in candidates.items():
        if candidate != path and _is_known_path(table, method, candidate):
            return f"{told}: {quote_value(candidate)}"
    for cut in range(2, path.count("/") + 1):
        rest = "/" + "/".join(path.split("/")[cut:])
        if rest != "/" and _is_known_path(table, method, rest):
            return (
                f"{quote_value(rest)} is known: "
                "a root_path, or what a proxy is reached under, is no part"
            )
    return _nearest_path(path)


def _is_known_path(table: RouteTable, method: str, path: str) -> bool:
    return table.find(method, path) is not None or bool(table.methods(path))


def _nearest_path(path: str) -> str | None:
    import difflib

    templates = {route.template for route in ROUTES.values()}
    near = difflib.get_close_matches(path, templates, n=1, cutoff=0.75)
    return f"the nearest is {near[0]}" if near else None


def describe_grant(match: RouteMatch, principal: Principal | None) -> str:
    """By what the policy lets the caller pass."""
    rule = POLICY[match.operation]
    if isinstance(rule, Public):
        return "public: no credential is looked at"
    assert principal is not None
    if isinstance(rule, Authenticated):
        return "open to every identified caller"
    if principal.admin:
        return "the caller is an administrator"
    opening = [scope for scope in required_scopes(*match) if scope in principal.scopes]
    if opening:
        return f"opened by {opening[0]}"
    assert isinstance(rule, NeedsScope)
    ids = sorted(allowed_ids(principal, match.operation) or ())
    return f"opened in part, for {', '.join(ids)}"
