"""Causes and remedies of denials, in words for an operator; the policy decides."""

from __future__ import annotations

import re

from agentctl.auth.explain.origins import (
    describe_roles,
    describe_unread,
    find_unread_claims,
    list_scopes,
    split_value,
    suggest_setting,
)
from agentctl.auth.explain.suggestions import describe_difference, quote_value
from agentctl.auth.policy import POLICY, Admin, Authenticated, NeedsScope, required_scopes
from agentctl.auth.principal import Principal
from agentctl.auth.tokens.claims import RawClaims
from agentctl.auth.tokens.grants import SCOPES_CLAIM, ScopeRules, find_claim
from agentctl.interface.requests.accounts import MAXIMUM_SCOPES
from agentctl.records.routes import RouteMatch
from agentctl.records.scopes import is_well_formed, suggest_scope

_MAXIMUM_SENTENCES = 3
"""Sentences about scopes of one denial at most."""

_SEPARATORS = re.compile(r"[:./\s]+")


def describe_requirement(match: RouteMatch, admin_scope: str) -> str:
    """Describe the requirement of an operation."""
    requirement = POLICY[match.operation]
    if isinstance(requirement, Authenticated):
        return "any valid token"
    if isinstance(requirement, Admin):
        return f"{admin_scope} (authorization.admin_scope)"
    return " or ".join(required_scopes(*match))


def explain_denial(
    match: RouteMatch, principal: Principal, claims: RawClaims, rules: ScopeRules
) -> tuple[str, str]:
    """Return cause and remedy of a denial.

    Args:
        match: the operation.
        principal: the caller that the policy denied.
        claims: the claims of its token; empty for other credentials.
        rules: the claims that are read.
    """
    needed = describe_requirement(match, rules.admin_scope)
    remedy = f"grant one of: {needed}"
    texts = [] if claims else sorted(principal.scopes)
    for name in rules.scopes_claims:
        value = find_claim(claims, name)
        if name == SCOPES_CLAIM and isinstance(value, str):
            example = ", ".join(map(quote_value, value.split()[:3]))
            cause = f"the claim {name} is a text, {quote_value(value)}, and grants nothing"
            return cause, f"configure the issuer to write an array: [{example}]"
        if len(split_value(value)) > MAXIMUM_SCOPES:
            cause = f"the claim {name} has more than {MAXIMUM_SCOPES} scopes: none counts"
            return cause, "grant fewer scopes: * in the middle matches every id"
        texts += list_scopes(value, rules)
    requirement = POLICY[match.operation]
    sentences = list[str]()
    for scope in texts:
        sentence = _explain_admin_scope(scope, rules.admin_scope)
        if sentence is None and isinstance(requirement, NeedsScope):
            sentence = _explain_scope(scope, match, requirement)
        if sentence is not None:
            sentences.append(sentence)
    del sentences[_MAXIMUM_SENTENCES:]
    roles = describe_roles(claims, rules)
    sentences += [f"{name}: {text}" for name, text in roles.items()]
    if unread := find_unread_claims(claims, rules):
        sentences.append(describe_unread(unread))
    required = {*required_scopes(*match), rules.admin_scope}
    helpful = [claim for claim in unread if required.intersection(list_scopes(claim.value, rules))]
    if helpful or (unread and not principal.scopes):
        remedy = suggest_setting(helpful or unread, rules)
    elif roles:
        remedy = f"{remedy}; [authorization.roles] has the scopes of roles"
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
