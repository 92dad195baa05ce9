"""What each step of verification met in a credential, in words for the operator.

Never the credential itself, and nothing of a key but its name. Whether a step is passed is decided
by the server's own functions; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentctl.auth.explain.steps import ACCOUNT_CHECKS
from agentctl.auth.explain.suggestions import elsewhere, shown
from agentctl.auth.keys.generate import thumbprint_of
from agentctl.auth.scopes import well_formed
from agentctl.auth.tokens import claims as claim_checks
from agentctl.auth.tokens.account_tokens import account_start
from agentctl.auth.tokens.claims import ClaimRules, Members
from agentctl.auth.tokens.jws import KeySet, Parts, candidates, check_signature, split
from agentctl.errors import InvalidToken
from agentctl.records.times import rfc3339, spoken

if TYPE_CHECKING:
    from agentctl.auth.keys.material import VerificationKey
    from agentctl.config.settings import Settings

__all__ = [
    "FOUND",
    "OF_ACCOUNT",
    "OF_JWT",
    "Facts",
    "distance",
    "facts_of",
    "key_names",
    "listed",
    "name_of",
    "unread_scopes",
]

_LISTED = 8
"""Keys, scopes or claims that are named in one sentence."""


@dataclass(frozen=True, slots=True)
class Facts:
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
    parts: Parts | None
    claims: Members | None

    @property
    def header(self) -> Mapping[str, Any]:
        """The header, empty where there is none."""
        return {} if self.parts is None else self.parts.header

    @property
    def of_account(self) -> bool:
        """Whether it begins as the tokens of service accounts do here: it is looked up then."""
        return self.token.startswith(account_start(self.settings.authorization.token_prefix))


def facts_of(token: str, settings: Settings, keys: KeySet, *, stale: bool, now: float) -> Facts:
    """Take a credential apart as far as it can be."""
    rules = ClaimRules.from_settings(settings)
    parts: Parts | None = None
    members: Members | None = None
    try:
        parts = split(token, maximum=settings.limits.token_bytes)
        members = claim_checks.read(parts.payload)
    except InvalidToken:
        pass
    return Facts(token, settings, rules, keys, stale, now, parts, members)


def name_of(key: VerificationKey) -> str:
    """What a key is called: its `kid`, else its thumbprint; a shared secret has neither."""
    if key.kid is not None:
        return shown(key.kid)
    return "a shared secret" if isinstance(key.material, bytes) else shown(thumbprint_of(key))


def key_names(keys: KeySet) -> str:
    """The keys in use by name."""
    return listed([name_of(key) for key in keys.keys])


def distance(moment: float, now: float) -> str:
    """How far a time is: `in 12 min`, `4 min ago`."""
    ahead = moment - now
    return f"in {spoken(ahead)}" if ahead > 0 else f"{spoken(-ahead)} ago"


def unread_scopes(claims: Members) -> str | None:
    """Permissions that stand where they are not read; None: there are none."""
    found = [f"{name} ({shown(value)})" for name, value in elsewhere(claims)]
    return f"not read: {listed(found)}" if found else None


def _length(facts: Facts) -> str:
    return f"{len(facts.token)} of at most {facts.settings.limits.token_bytes} bytes"


def _transport(facts: Facts) -> str:
    return "Bearer and one token"


def _form(facts: Facts) -> str:
    return "three segments of base64url"


def _header(facts: Facts) -> str:
    named = {name: facts.header[name] for name in ("alg", "kid", "typ") if name in facts.header}
    return ", ".join(f"{name} {shown(value)}" for name, value in named.items())


def _key(facts: Facts) -> str:
    found = candidates(facts.header, facts.keys)
    kid = facts.header.get("kid")
    named = f"of kid {shown(kid)}" if kid is not None else "for a token without kid"
    before = "; changed key files are refused, these are the ones before" if facts.stale else ""
    return f"{named}: {listed([name_of(key) for key in found])}{before}"


def _signature(facts: Facts) -> str:
    assert facts.parts is not None
    key = check_signature(facts.parts, candidates(facts.header, facts.keys))
    return f"holds, with {name_of(key)}"


def _claims(facts: Facts) -> str:
    names = [shown(name) for name in facts.claims or ()]
    return listed(names) if names else "no claims"


def _moment(name: str, without: str) -> Callable[[Facts], str]:
    def found(facts: Facts) -> str:
        value = (facts.claims or {}).get(name)
        if value is None:
            return without
        return f"{rfc3339(int(value * 1_000_000))}, {distance(value, facts.now)}"

    return found


def _iss(facts: Facts) -> str:
    value = (facts.claims or {}).get("iss")
    if facts.rules.issuer is None:
        return f"{shown(value)}, not compared: authorization.issuer is empty"
    return shown(value)


def _aud(facts: Facts) -> str:
    value = (facts.claims or {}).get("aud")
    if facts.rules.audience is None:
        return f"{shown(value)}, not compared: authorization.verify_audience is off"
    return shown(value)


def _sub(facts: Facts) -> str:
    claims = facts.claims or {}
    return shown(claims["sub"]) if "sub" in claims else "none: the caller has no name"


def _scopes(facts: Facts) -> str:
    value = (facts.claims or {}).get("scopes")
    notes = [_counting(value, facts)]
    unread = unread_scopes(facts.claims or {})
    return "; ".join([*notes, unread] if unread else notes)


def _counting(value: object, facts: Facts) -> str:
    """Which of the scopes count."""
    if value is None:
        return "none"
    if not isinstance(value, list):
        return f"{shown(value)} is no array: it grants nothing"
    counted = sorted(claim_checks.check_scopes(facts.claims or {}, facts.rules, facts.now))
    ignored = [
        entry
        for entry in value
        if not isinstance(entry, str)
        or (not well_formed(entry) and entry != facts.rules.admin_scope)
    ]
    if value and not counted and len(ignored) < len(value):
        return f"{len(value)} entries are too many: none counts"
    text = listed(counted) if counted else "none"
    return f"{text}; not well-formed: {listed(list(map(shown, ignored)))}" if ignored else text


def _session_id(facts: Facts) -> str:
    claims = facts.claims or {}
    return shown(claims["session_id"]) if "session_id" in claims else "none"


def listed(texts: list[str]) -> str:
    """`a, b and 3 more`, of however many texts."""
    more = len(texts) - _LISTED
    return ", ".join(texts[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _account_form(facts: Facts) -> str:
    return "length, alphabet and checksum are right"


def _nothing(facts: Facts) -> str:
    return ""


FOUND: dict[str, Callable[[Facts], str]] = {
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

OF_JWT = tuple(name for name in FOUND if name not in ACCOUNT_CHECKS)
OF_ACCOUNT = ("length", "transport", *ACCOUNT_CHECKS)
"""The steps in the order in which a credential of the kind goes through them."""
