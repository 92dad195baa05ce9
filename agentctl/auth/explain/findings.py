"""What each step of verification met in a credential, in words for the operator.

Never the credential itself, and nothing of a key but its name. Whether a step is passed is decided
by the server's own functions; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentctl.auth.explain.steps import ACCOUNT_CHECKS
from agentctl.auth.explain.suggestions import find_unread_permissions, quote_value
from agentctl.auth.keys.generate import key_thumbprint
from agentctl.auth.scopes import is_well_formed
from agentctl.auth.tokens import claims as claim_checks
from agentctl.auth.tokens.account_tokens import account_token_prefix
from agentctl.auth.tokens.claims import ClaimRules, RawClaims
from agentctl.auth.tokens.jws import (
    KeySet,
    TokenParts,
    check_signature,
    find_candidate_keys,
    parse_token,
)
from agentctl.errors import InvalidToken
from agentctl.records.times import format_rfc3339, format_span

if TYPE_CHECKING:
    from agentctl.auth.keys.material import VerificationKey
    from agentctl.config.settings import Settings

__all__ = [
    "ACCOUNT_TOKEN_CHECKS",
    "FOUND",
    "JWT_CHECKS",
    "CredentialFacts",
    "collect_facts",
    "describe_distance",
    "describe_key",
    "describe_keys",
    "describe_unread_permissions",
    "join_some",
]

_MAXIMUM_LISTED = 8
"""Keys, scopes or claims that are named in one sentence."""


@dataclass(frozen=True, slots=True)
class CredentialFacts:
    """A credential and what it is held to.

    Attributes:
        token: as it was sent, without the word Bearer.
        settings: the configuration.
        rules: what is demanded of claims.
        keys: those in use.
        stale: whether changed key files are refused, so that these are the ones before.
        now: the present, in seconds since the epoch.
        parts: the token taken apart; None: it is no token.
        claims: as they stand in it; None: they cannot be read.
    """

    token: str
    settings: Settings
    rules: ClaimRules
    keys: KeySet
    stale: bool
    now: float
    parts: TokenParts | None
    claims: RawClaims | None

    @property
    def header(self) -> Mapping[str, Any]:
        """The header, empty where there is none."""
        return {} if self.parts is None else self.parts.header

    @property
    def of_account(self) -> bool:
        """Whether it begins as the tokens of service accounts do here: it is looked up then."""
        return self.token.startswith(account_token_prefix(self.settings.authorization.token_prefix))


def collect_facts(
    token: str, settings: Settings, keys: KeySet, *, stale: bool, now: float
) -> CredentialFacts:
    """Take a credential apart as far as it can be."""
    rules = ClaimRules.from_settings(settings)
    parts: TokenParts | None = None
    members: RawClaims | None = None
    try:
        parts = parse_token(token, maximum=settings.limits.token_bytes)
        members = claim_checks.parse_claims(parts.payload)
    except InvalidToken:
        pass
    return CredentialFacts(token, settings, rules, keys, stale, now, parts, members)


def describe_key(key: VerificationKey) -> str:
    """What a key is called: its `kid`, else its thumbprint; a shared secret has neither."""
    if key.kid is not None:
        return quote_value(key.kid)
    return (
        "a shared secret" if isinstance(key.material, bytes) else quote_value(key_thumbprint(key))
    )


def describe_keys(keys: KeySet) -> str:
    """The keys in use by name."""
    return join_some([describe_key(key) for key in keys.keys])


def describe_distance(moment: float, now: float) -> str:
    """How far a time is: `in 12 min`, `4 min ago`."""
    ahead = moment - now
    return f"in {format_span(ahead)}" if ahead > 0 else f"{format_span(-ahead)} ago"


def describe_unread_permissions(claims: RawClaims) -> str | None:
    """Permissions that stand where they are not read; None: there are none."""
    found = [f"{name} ({quote_value(value)})" for name, value in find_unread_permissions(claims)]
    return f"not read: {join_some(found)}" if found else None


def _length(facts: CredentialFacts) -> str:
    return f"{len(facts.token)} of at most {facts.settings.limits.token_bytes} bytes"


def _transport(facts: CredentialFacts) -> str:
    return "Bearer and one token"


def _form(facts: CredentialFacts) -> str:
    return "three segments of base64url"


def _header(facts: CredentialFacts) -> str:
    named = {name: facts.header[name] for name in ("alg", "kid", "typ") if name in facts.header}
    return ", ".join(f"{name} {quote_value(value)}" for name, value in named.items())


def _key(facts: CredentialFacts) -> str:
    found = find_candidate_keys(facts.header, facts.keys)
    kid = facts.header.get("kid")
    named = f"of kid {quote_value(kid)}" if kid is not None else "for a token without kid"
    before = "; changed key files are refused, these are the ones before" if facts.stale else ""
    return f"{named}: {join_some([describe_key(key) for key in found])}{before}"


def _signature(facts: CredentialFacts) -> str:
    assert facts.parts is not None
    key = check_signature(facts.parts, find_candidate_keys(facts.header, facts.keys))
    return f"holds, with {describe_key(key)}"


def _claims(facts: CredentialFacts) -> str:
    names = [quote_value(name) for name in facts.claims or ()]
    return join_some(names) if names else "no claims"


def _moment(name: str, without: str) -> Callable[[CredentialFacts], str]:
    def found(facts: CredentialFacts) -> str:
        value = (facts.claims or {}).get(name)
        if value is None:
            return without
        return f"{format_rfc3339(int(value * 1_000_000))}, {describe_distance(value, facts.now)}"

    return found


def _iss(facts: CredentialFacts) -> str:
    value = (facts.claims or {}).get("iss")
    if facts.rules.issuer is None:
        return f"{quote_value(value)}, not compared: authorization.issuer is empty"
    return quote_value(value)


def _aud(facts: CredentialFacts) -> str:
    value = (facts.claims or {}).get("aud")
    if facts.rules.audience is None:
        return f"{quote_value(value)}, not compared: authorization.verify_audience is off"
    return quote_value(value)


def _sub(facts: CredentialFacts) -> str:
    claims = facts.claims or {}
    return quote_value(claims["sub"]) if "sub" in claims else "none: the caller has no name"


def _scopes(facts: CredentialFacts) -> str:
    value = (facts.claims or {}).get("scopes")
    notes = [_counting(value, facts)]
    unread = describe_unread_permissions(facts.claims or {})
    return "; ".join([*notes, unread] if unread else notes)


def _counting(value: object, facts: CredentialFacts) -> str:
    """Which of the scopes count."""
    if value is None:
        return "none"
    if not isinstance(value, list):
        return f"{quote_value(value)} is no array: it grants nothing"
    counted = sorted(claim_checks.check_scopes(facts.claims or {}, facts.rules, facts.now))
    ignored = [
        entry
        for entry in value
        if not isinstance(entry, str)
        or (not is_well_formed(entry) and entry != facts.rules.admin_scope)
    ]
    if value and not counted and len(ignored) < len(value):
        return f"{len(value)} entries are too many: none counts"
    text = join_some(counted) if counted else "none"
    return (
        f"{text}; not well-formed: {join_some(list(map(quote_value, ignored)))}"
        if ignored
        else text
    )


def _session_id(facts: CredentialFacts) -> str:
    claims = facts.claims or {}
    return quote_value(claims["session_id"]) if "session_id" in claims else "none"


def join_some(texts: list[str]) -> str:
    """`a, b and 3 more`, of however many texts."""
    more = len(texts) - _MAXIMUM_LISTED
    return ", ".join(texts[:_MAXIMUM_LISTED]) + (f" and {more} more" if more > 0 else "")


def _account_form(facts: CredentialFacts) -> str:
    return "length, alphabet and checksum are right"


def _nothing(facts: CredentialFacts) -> str:
    return ""


FOUND: dict[str, Callable[[CredentialFacts], str]] = {
    "length": _length,
    "transport": _transport,
    "form": _form,
    "header": _header,
    "key": _key,
    "signature": _signature,
    "claims.form": _claims,
    "claims.exp": _moment("exp", "none: the token never expires"),
    "claims.nbf": _moment("nbf", "none"),
    "claims.iat": _moment("iat", "none"),
    "claims.iss": _iss,
    "claims.aud": _aud,
    "claims.sub": _sub,
    "claims.scopes": _scopes,
    "claims.session_id": _session_id,
    "account.form": _account_form,
    "account.known": _nothing,
    "account.revoked": _nothing,
    "account.expired": _nothing,
}
"""What each step met where it was passed."""

JWT_CHECKS = tuple(name for name in FOUND if name not in ACCOUNT_CHECKS)
ACCOUNT_TOKEN_CHECKS = ("length", "transport", *ACCOUNT_CHECKS)
"""The steps in the order in which a credential of the kind goes through them."""
