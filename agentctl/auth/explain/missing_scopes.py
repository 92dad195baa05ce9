"""What a refused caller lacks, in words: which scopes would do, and why those that came do not."""

from __future__ import annotations

from typing import Any

from agentctl.auth.explain.findings import unread_scopes
from agentctl.auth.explain.suggestions import likely_scopes, shown
from agentctl.auth.policy import POLICY, Admin, Authenticated, required_scopes
from agentctl.auth.principal import Principal
from agentctl.auth.tokens.claims import MAXIMUM_SCOPES, Members
from agentctl.records.routes import Match

__all__ = ["lacking", "needed"]


def needed(match: Match, admin_scope: str) -> str:
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


def lacking(
    match: Match, principal: Principal, claims: Members, admin_scope: str
) -> tuple[str, str]:
    """Why the scopes of a caller do not do, and what would.

    Args:
        match: the operation.
        principal: the caller, whom the policy refused.
        claims: of its token, as they stand there; none for other credentials.
        admin_scope: that of the configuration.
    """
    raw = claims.get("scopes", sorted(principal.scopes))
    remedy = f"have one of these granted: {needed(match, admin_scope)}"
    if isinstance(raw, str):
        example = ", ".join(map(shown, raw.split()[:3]))
        cause = f"the claim scopes is text, {shown(raw)}, and grants nothing"
        return cause, f"have the issuer write an array: [{example}]"
    given = raw if isinstance(raw, list) else []
    if len(given) > MAXIMUM_SCOPES:
        cause = f"the token has more than {MAXIMUM_SCOPES} scopes, and so none that counts"
        return cause, "have fewer granted: * in the middle stands for every id"
    unread = unread_scopes(claims)
    if unread is not None and not principal.scopes:
        remedy = "have the issuer put the scopes into an array named scopes"
    return "; ".join(_told(match, given, unread, admin_scope)), remedy


def _told(match: Match, given: list[Any], unread: str | None, admin_scope: str) -> list[str]:
    texts = [scope for scope in given if isinstance(scope, str)]
    told = likely_scopes(texts, match.operation, match.path_params, admin_scope)
    if unread is not None:
        told.append(unread)
    if told:
        return told
    return ["no scope that is held allows it"] if texts else ["the caller holds no scopes"]
