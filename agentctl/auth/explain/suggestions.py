"""Suggestions for credentials and requests that are almost right.

The texts are for operators and explain decisions that are made elsewhere; nothing here decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from agentctl.auth.policy import POLICY, Admin, Authenticated, NeedsScope, required_scopes
from agentctl.auth.principal import Principal
from agentctl.auth.tokens.claims import RawClaims
from agentctl.interface.operations import ROUTES
from agentctl.interface.requests.accounts import MAXIMUM_SCOPES
from agentctl.records.routes import RouteMatch, RouteTable, has_encoded_slash
from agentctl.records.scopes import is_well_formed, suggest_scope
from agentctl.records.text import suggest_name

_MAXIMUM_SHOWN = 100
"""Characters of a quoted value at most."""

_MAXIMUM_LISTED = 8
"""Names in one sentence at most."""

_MAXIMUM_SENTENCES = 3
"""Sentences about one denial at most."""

_PREFIX_PARTS = 16
"""Parts of a path of which some may be the prefix of a proxy."""

_OTHER_CLAIMS = ("scope", "scp", "permissions", "roles", "groups", "authorities")
_NESTED_CLAIMS = (("realm_access", "roles"), ("resource_access", "roles"))
_SEPARATORS = re.compile(r"[:./\s]+")


def quote_value(value: object) -> str:
    """Return a value of a token or request as JSON on one line, cut at 100 characters.

    Invisible characters, and those that change the direction of text, are escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():
        text = json.dumps(value)
    return text if len(text) <= _MAXIMUM_SHOWN else f"{text[:_MAXIMUM_SHOWN]}..."


def join_some(texts: list[str]) -> str:
    """Join the first texts of a list for a sentence: `a, b and 3 more`."""
    more = len(texts) - _MAXIMUM_LISTED
    return ", ".join(texts[:_MAXIMUM_LISTED]) + (f" and {more} more" if more > 0 else "")


def describe_difference(actual: str, expected: str) -> str | None:
    """Describe the difference of two similar texts; None if they are not similar."""
    if actual.strip() == expected.strip():
        return "it has white space at an end"
    if actual.rstrip("/") == expected.rstrip("/"):
        return "only the slash at the end differs"
    if actual.casefold() == expected.casefold():
        return "only upper and lower case differ"
    if _without_scheme(actual) == _without_scheme(expected):
        return "only the part before :// differs"
    if expected and (actual.startswith(expected) or actual.endswith(expected)):
        return "it has extra text"
    if actual and (expected.startswith(actual) or expected.endswith(actual)):
        return "it is only a part"
    return None


def _without_scheme(text: str) -> str:
    return text.partition("://")[2].rstrip("/") or text


def find_unread_permissions(claims: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of claims in which other systems keep permissions.

    This server reads the claim `scopes` only.
    """
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


def describe_unread_permissions(claims: RawClaims) -> str | None:
    """Describe permissions in claims that are not read here; None if there are none."""
    unread = [f"{name} ({quote_value(value)})" for name, value in find_unread_permissions(claims)]
    return f"not read: {join_some(unread)}" if unread else None


def describe_requirement(match: RouteMatch, admin_scope: str) -> str:
    """Describe the requirement of an operation."""
    requirement = POLICY[match.operation]
    if isinstance(requirement, Authenticated):
        return "any valid token"
    if isinstance(requirement, Admin):
        return f"{admin_scope} (authorization.admin_scope)"
    return " or ".join(required_scopes(*match))


def explain_denial(
    match: RouteMatch, principal: Principal, claims: RawClaims, admin_scope: str
) -> tuple[str, str]:
    """Return cause and remedy of a denial.

    Args:
        match: the operation.
        principal: the caller that the policy denied.
        claims: the claims of its token; empty for other credentials.
        admin_scope: `authorization.admin_scope`.
    """
    raw = claims.get("scopes", sorted(principal.scopes))
    remedy = f"grant one of: {describe_requirement(match, admin_scope)}"
    if isinstance(raw, str):
        example = ", ".join(map(quote_value, raw.split()[:3]))
        cause = f"the claim scopes is a text, {quote_value(raw)}, and grants nothing"
        return cause, f"configure the issuer to write an array: [{example}]"
    scopes = raw if isinstance(raw, list) else []
    if len(scopes) > MAXIMUM_SCOPES:
        cause = f"the token has more than {MAXIMUM_SCOPES} scopes: none counts"
        return cause, "grant fewer scopes: * in the middle matches every id"
    texts = [scope for scope in scopes if isinstance(scope, str)]
    requirement = POLICY[match.operation]
    sentences = list[str]()
    for scope in texts:
        sentence = _explain_admin_scope(scope, admin_scope)
        if sentence is None and isinstance(requirement, NeedsScope):
            sentence = _explain_scope(scope, match, requirement)
        if sentence is not None:
            sentences.append(sentence)
    del sentences[_MAXIMUM_SENTENCES:]
    unread = describe_unread_permissions(claims)
    if unread is not None:
        sentences.append(unread)
        if not principal.scopes:
            remedy = "configure the issuer to put the scopes into an array named scopes"
    nothing = "none of its scopes allows it" if texts else "the caller has no scopes"
    return "; ".join(sentences) or nothing, remedy


def _explain_admin_scope(scope: str, admin_scope: str) -> str | None:
    quoted, admin = quote_value(scope), quote_value(admin_scope)
    if scope.casefold().strip() == admin_scope.casefold():
        is_padded = scope != scope.strip()
        small = "it has white space at an end" if is_padded else "upper and lower case differ"
        return f"{quoted} is not the admin scope {admin}: {small}"
    if scope.casefold() in ("admin", "*", "*:*", "agent_os:admin", "agent_os:*"):
        return f"{quoted} is not the admin scope, which is {admin} here"
    return None


def _explain_scope(scope: str, match: RouteMatch, requirement: NeedsScope) -> str | None:
    for required in required_scopes(*match):
        if scope.casefold().strip() == required.casefold() and scope != required:
            difference = describe_difference(scope, required)
            return f"{quote_value(scope)} is not {quote_value(required)}: {difference}"
    if not is_well_formed(scope):
        return _explain_malformed(scope, requirement)
    quoted, (resource, *middle, action) = quote_value(scope), scope.split(":")
    if (resource, action) == (requirement.action, requirement.resource):
        return f"{quoted} has resource and action in the wrong order"
    if resource == requirement.resource and action != requirement.action:
        return f"{quoted} allows {action}, not {requirement.action}"
    if resource == requirement.resource:
        noun, name = requirement.resource.removesuffix("s"), requirement.id_param
        expected = None if name is None else match.path_params.get(name)
        if expected is None:
            return f"{quoted} is for one {noun}, and this operation is about all of them"
        difference = describe_difference(middle[0] if middle else "*", expected)
        text = f"{quoted} is for another {noun}, not {quote_value(expected)}"
        return f"{text}: {difference}" if difference else text
    suggested = suggest_scope(scope)
    if not middle and suggested == f"{requirement.resource}:{requirement.action}":
        return f"{quoted} is not a scope: did you mean {quote_value(suggested)}?"
    return None


def _explain_malformed(scope: str, requirement: NeedsScope) -> str | None:
    quoted, resource, action = quote_value(scope), requirement.resource, requirement.action
    if "*" in scope and scope.startswith(resource):
        star = quote_value(f"{resource}:*:{action}")
        return f"{quoted} is not well-formed: * is allowed in the middle only, {star}"
    words = _SEPARATORS.split(scope.strip().casefold())
    if words[:1] == [resource] and words[-1] == action:
        return f"{quoted} is not well-formed: one : separates two parts"
    if resource in words and action in words:
        return f"{quoted} is one text: each scope is a separate entry"
    return None


def decode_path(target: str) -> str:
    """Return the decoded path of a request target, without query and fragment."""
    return unquote(target.partition("#")[0].partition("?")[0])


def routable_path(target: str) -> str:
    """Return the path that a server matches for a request target.

    It is empty for a path with an encoded slash, which matches no route.
    """
    raw = target.partition("#")[0].partition("?")[0]
    return "" if has_encoded_slash(raw.encode("utf-8", "surrogatepass")) else decode_path(target)


def suggest_path(table: RouteTable, method: str, path: str) -> str | None:
    """Describe the mistake in a path that matches no route; None if no route is similar."""

    def is_known(candidate: str) -> bool:
        return table.find(method, candidate) is not None or bool(table.methods(candidate))

    candidates = {
        "paths have no slash at the end": path.rstrip("/"),
        "paths have one slash between two parts": re.sub(r"/+", "/", path),
        "paths are in lower case": path.lower(),
    }
    for rule, candidate in candidates.items():
        if candidate != path and is_known(candidate):
            return f"{rule}: {quote_value(candidate)}"
    parts = path.split("/")
    for cut in range(2, min(len(parts), _PREFIX_PARTS)):
        rest = "/" + "/".join(parts[cut:])
        if rest != "/" and is_known(rest):
            return f"{quote_value(rest)} is known: omit the root_path or the prefix of a proxy"
    near = suggest_name(path, sorted({route.template for route in ROUTES.values()}))
    return f"did you mean {near}?" if near else None
