"""A parsed credential, with the rules and keys that apply to it, for the checks to describe."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentctl.auth.explain.suggestions import join_some, quote_value
from agentctl.auth.keys.signing import key_thumbprint
from agentctl.auth.tokens.account_tokens import ACCOUNT_PREFIX
from agentctl.auth.tokens.claims import ClaimRules, RawClaims, parse_claims
from agentctl.auth.tokens.jws import KeySet, TokenParts, parse_token
from agentctl.errors import InvalidToken
from agentctl.light_dataclass import dataclass
from agentctl.records.times import format_span

if TYPE_CHECKING:
    from agentctl.auth.keys.material import VerificationKey
    from agentctl.config.settings import Settings


@dataclass(frozen=True, slots=True)
class CredentialFacts:
    """A credential and the rules that apply to it.

    Attributes:
        token: the credential as it was sent, without the word Bearer.
        stale: changed key files were rejected, so `keys` are the previous ones.
        now: the current time, in seconds since the epoch.
        parts: the segments of the token; None if it is not a JWT.
        claims: the unverified claims, empty if they cannot be read.
    """

    token: str
    settings: Settings
    rules: ClaimRules
    keys: KeySet
    stale: bool
    now: float
    parts: TokenParts | None
    claims: RawClaims

    @property
    def header(self) -> Mapping[str, Any]:
        """The JOSE header, empty if it cannot be read."""
        return {} if self.parts is None else self.parts.header

    @property
    def is_for_account(self) -> bool:
        """True if the prefix is that of service account tokens here: the token is looked up."""
        return self.token.startswith(ACCOUNT_PREFIX)


def collect_facts(
    token: str, settings: Settings, keys: KeySet, *, stale: bool, now: float
) -> CredentialFacts:
    """Parse a credential as far as possible, without verifying anything."""
    rules = ClaimRules.from_settings(settings)
    parts: TokenParts | None = None
    claims: RawClaims = {}
    with suppress(InvalidToken):
        parts = parse_token(token)
        claims = parse_claims(parts.payload)
    return CredentialFacts(token, settings, rules, keys, stale, now, parts, claims)


def describe_keys(keys: KeySet) -> str:
    """Return the names of the keys in use, for a sentence."""
    return join_some(list(map(describe_key, keys.keys)))


def describe_key(key: VerificationKey) -> str:
    """Return the `kid` of a key, else its thumbprint; a shared secret has neither."""
    if key.kid is not None:
        return quote_value(key.kid)
    is_secret = isinstance(key.material, bytes)
    return "a shared secret" if is_secret else quote_value(key_thumbprint(key))


def describe_distance(moment: float, now: float) -> str:
    """Return the distance of two times in seconds as `in 12 min` or `4 min ago`."""
    ahead = moment - now
    return f"in {format_span(ahead)}" if ahead > 0 else f"{format_span(-ahead)} ago"
