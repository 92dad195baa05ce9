"""What a refused caller lacks, in words: which scopes would do, and why those that came do not."""

from __future__ import annotations

from typing import Any

from agentctl.auth.explain.findings import describe_unread_permissions
from agentctl.auth.explain.suggestions import explain_scopes, quote_value
from agentctl.auth.policy import POLICY, Admin, Authenticated, required_scopes
from agentctl.auth.principal import Principal
from agentctl.auth.tokens.claims import MAXIMUM_SCOPES, RawClaims
from agentctl.records.routes import RouteMatch

__all__ = ["describe_requirement", "explain_denial"]


def describe_requirement(match: RouteMatch, admin_scope: str) -> str:
    """What the policy asks for.

    Args:
        match: the operation.
        admin_scope: that of the configuration.
    """
    rule = POLICY[match.operation]
    if isinstance(rule, Authenticated):
        return "any valid token"
    if isinstance(rule, Admin):
        return f"{admin_scope} (authorization.admin_scope)"
    return " or ".join(required_scopes(*match))


def explain_denial(
    match: RouteMatch, principal: Principal, claims: RawClaims, admin_scope: str
) -> tuple[str, str]:
    """Why the scopes of a caller do not do, and what would.

    Args:
        match: the operation.
        principal: the caller, whom the policy refused.
        claims: of its token, as they stand there; none for other credentials.
        admin_scope: that of the configuration.
    """
    raw = claims.get("scopes", sorted(principal.scopes))
    remedy = f"have one of these granted: {describe_requirement(match, admin_scope)}"
    if isinstance(raw, str):
        example = ", ".join(map(quote_value, raw.split()[:3]))
        cause = f"the claim scopes is text, {quote_value(raw)}, and grants nothing"
        return cause, f"have the issuer write an array: [{example}]"
    given = raw if isinstance(raw, list) else []
    if len(given) > MAXIMUM_SCOPES:
        cause = f"the token has more than {MAXIMUM_SCOPES} scopes, and so none that counts"
        return cause, "have fewer granted: * in the middle stands for every id"
    unread = describe_unread_permissions(claims)
    if unread is not None and not principal.scopes:
        remedy = "have the issuer put the scopes into an array named scopes"
    return "; ".join(_describe_scopes(match, given, unread, admin_scope)), remedy


def _describe_scopes(
    match: RouteMatch, given: list[Any], unread: str | None, admin_scope: str
) -> list[str]:
    texts = [scope for scope in given if isinstance(scope, str)]
    told = explain_scopes(texts, match.operation, match.path_params, admin_scope)
    if unread is not None:
        told.append(unread)
    if told:
        return told
    return ["no scope that is held allows it"] if texts else ["the caller holds no scopes"]
