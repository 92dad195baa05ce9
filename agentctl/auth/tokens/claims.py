"""Check the claims of a token with a valid signature (docs/contract.md "Claims", RFC 7519 4.1).

The checks of PyJWT are not used because they call `int()` on times and so accept strings.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentctl.auth.tokens.grants import ScopeRules, collect_scopes, list_unread_claims
from agentctl.errors import InvalidToken
from agentctl.interface.requests import MAXIMUM_USER_ID_LENGTH
from agentctl.records.strict import NotStrict, parse_object
from agentctl.records.text import is_session_id

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

RawClaims = Mapping[str, Any]
"""The claims of a token before they are checked."""

_MAXIMUM_AUDIENCES = 16

LAST_SECOND = 253_402_300_799
"""23:59:59 on the last day of the year 9999, in seconds since the epoch."""

_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Invisible letters and marks: Default_Ignorable_Code_Point without control and format."""

_RESERVED = ("sa:", "__", "local:", "system:")

LEEWAY_SECONDS = 10.0
"""Difference of clocks that is allowed for `nbf` and `iat`."""


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """The rules for claims."""

    audience: str | None = None
    """The value that `aud` must equal or contain; None accepts any."""

    issuer: str | None = None
    """The value that `iss` must equal; None accepts any."""

    require_exp: bool = False
    """Reject a token without `exp`."""

    require_sub: bool = False
    """Reject a token without `sub`."""

    leeway: float = LEEWAY_SECONDS
    """Seconds that `nbf` and `iat` may be in the future; `exp` has no leeway."""

    token_type: str | None = None
    """The claim `typ` of access tokens, which a token with this claim must have; None for any.

    Keycloak signs ID and refresh tokens with the same keys, and tells them apart by this claim.
    """

    scopes: ScopeRules = field(default_factory=ScopeRules)
    """The rules for scopes and roles."""

    @classmethod
    def from_settings(cls, settings: Settings) -> ClaimRules:
        """Return the rules of `[authorization]`; the default audience is `server.id`."""
        options = settings.authorization

        audience = None
        if options.verify_audience:
            audience = options.audience or settings.server.id

        return cls(
            audience=audience,
            issuer=options.issuer or None,
            require_exp=options.require_exp,
            require_sub=options.require_sub,
            token_type="Bearer" if options.provider == "keycloak" else None,
            scopes=ScopeRules.from_settings(options),
        )


@dataclass(frozen=True, slots=True)
class Claims:
    """Valid claims."""

    subject: str | None
    """`sub`, or None."""

    scopes: frozenset[str]
    """The scopes that the claims grant."""

    session_id: str | None
    """The default session of runs and cancels, or None."""

    expires_at: float | None
    """`exp` in seconds since the epoch; None if the token never expires."""

    unread: tuple[str, ...] = ()
    """Names in KNOWN_CLAIMS that the token has and that no setting reads.

    Empty if the token has scopes: the names explain only why it has none.
    """


def check_claims(payload: bytes, rules: ClaimRules, now: float) -> Claims:
    """Run all checks of the payload of a token with a valid signature.

    Args:
        now: the current time, in seconds since the epoch.

    Raises:
        InvalidToken: a claim is malformed or breaks a rule.
    """
    members = parse_claims(payload)
    expires_at = check_exp(members, rules, now)
    check_nbf(members, rules, now)
    check_iat(members, rules, now)
    check_iss(members, rules, now)
    check_aud(members, rules, now)
    subject = check_sub(members, rules, now)
    scopes = check_scopes(members, rules, now)
    session_id = check_session_id(members, rules, now)
    unread = () if scopes else list_unread_claims(members, rules.scopes)
    return Claims(subject, scopes, session_id, expires_at, unread)


def parse_claims(payload: bytes) -> dict[str, Any]:
    """Run the check `claims.form`: return the unchecked claims.

    Raises:
        InvalidToken: the payload is not a strict JSON object.
    """
    try:
        return parse_object(payload)
    except NotStrict as failure:
        raise InvalidToken(f"the payload {failure}", check="claims.form") from None


def check_exp(members: RawClaims, rules: ClaimRules, now: float) -> float | None:
    """Run the check `claims.exp`: it is in the future, without leeway."""
    expires_at = _read_time(members, "exp")
    if expires_at is None and rules.require_exp:
        raise _invalid_claim("exp", "the token has no exp")
    if expires_at is not None and now >= expires_at:
        raise _invalid_claim("exp", "the token has expired")
    return expires_at


def check_nbf(members: RawClaims, rules: ClaimRules, now: float) -> float | None:
    """Run the check `claims.nbf`: it is not in the future by more than the leeway."""
    return _check_not_future(members, "nbf", rules, now)


def check_iat(members: RawClaims, rules: ClaimRules, now: float) -> float | None:
    """Run the check `claims.iat`: it is not in the future by more than the leeway."""
    return _check_not_future(members, "iat", rules, now)


def _check_not_future(members: RawClaims, name: str, rules: ClaimRules, now: float) -> float | None:
    value = _read_time(members, name)
    if value is not None and value > now + rules.leeway:
        raise _invalid_claim(name, f"the token's {name} is in the future")
    return value


def _read_time(members: RawClaims, name: str) -> float | None:
    """Return a NumericDate, which is a JSON number and not true or "1" (RFC 7519 2)."""
    if name not in members:
        return None
    value = members[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid_claim(name, f"the token's {name} is not a number")
    if not 0 <= value <= LAST_SECOND:
        raise _invalid_claim(name, f"the token's {name} is not a time between 1970 and 9999")
    return value


def check_iss(members: RawClaims, rules: ClaimRules, now: float) -> None:
    """Run the check `claims.iss`: it equals the configured issuer, if there is one."""
    if rules.issuer is not None and members.get("iss") != rules.issuer:
        raise _invalid_claim("iss", "the token's iss is not the configured issuer")


def check_aud(members: RawClaims, rules: ClaimRules, now: float) -> list[str]:
    """Run the check `claims.aud`: it contains the configured audience.

    It is a string or an array of strings (RFC 7519 4.1.3). A token of another type than
    `rules.token_type` is not for this server, whatever its audience is: the audience of an ID token
    is a client, which can have the name of the server.
    """
    kind = members.get("typ", rules.token_type)
    if rules.token_type is not None and kind != rules.token_type:
        text = f"the token's typ is not {rules.token_type}: it is no access token"
        raise _invalid_claim("aud", text)

    value = members.get("aud", [])
    audiences = [value] if isinstance(value, str) else value
    if not isinstance(audiences, list) or not all(isinstance(name, str) for name in audiences):
        raise _invalid_claim("aud", "the token's aud is not a string or an array of strings")
    if len(audiences) > _MAXIMUM_AUDIENCES:
        raise _invalid_claim("aud", f"the token's aud has more than {_MAXIMUM_AUDIENCES} entries")
    if rules.audience is not None and rules.audience not in audiences:
        raise _invalid_claim("aud", "the token's aud is not the configured audience")
    return audiences


def check_sub(members: RawClaims, rules: ClaimRules, now: float) -> str | None:
    """Run the check `claims.sub`: it is a plain string and not a reserved subject."""
    if "sub" not in members:
        if rules.require_sub:
            raise _invalid_claim("sub", "the token has no sub")
        return None

    subject = members["sub"]
    if not isinstance(subject, str) or not 1 <= len(subject) <= MAXIMUM_USER_ID_LENGTH:
        text = f"the token's sub is not a string of 1 to {MAXIMUM_USER_ID_LENGTH} characters"
        raise _invalid_claim("sub", text)

    if has_hidden_characters(subject):
        raise _invalid_claim("sub", "the token's sub has invisible characters or outer spaces")
    if is_reserved_subject(subject):
        raise _invalid_claim("sub", "the token's sub is a reserved subject")
    return subject


def has_hidden_characters(subject: str) -> bool:
    """Return True for a text with control or invisible characters, or with outer spaces."""
    if subject != subject.strip():
        return True
    return any(unicodedata.category(character) in _INVISIBLE_CATEGORIES for character in subject)


def is_reserved_subject(subject: str) -> bool:
    """Return True for subjects that start with `sa:`, `__`, `local:` or `system:`.

    The server writes such names into records. With a reserved subject a token could impersonate a
    service account, a user of the machine or the server (docs/contract.md "Claims").
    """
    text = unicodedata.normalize("NFKC", _IGNORABLE.sub("", subject)).casefold()
    # Case folding can leave a text that is not normalized (Unicode Standard 3.13, D146).
    return unicodedata.normalize("NFKC", text).startswith(_RESERVED)


def check_scopes(members: RawClaims, rules: ClaimRules, now: float) -> frozenset[str]:
    """Run the check `claims.scopes`: return the scopes that count; other texts are no error."""
    return collect_scopes(members, rules.scopes)


def check_session_id(members: RawClaims, rules: ClaimRules, now: float) -> str | None:
    """Run the check `claims.session_id`: it has the form of a session id."""
    if "session_id" not in members:
        return None
    session_id = members["session_id"]
    if not isinstance(session_id, str) or not is_session_id(session_id):
        raise _invalid_claim("session_id", "the token's session_id is not a session id")
    return session_id


def _invalid_claim(name: str, reason: str) -> InvalidToken:
    return InvalidToken(reason, check=f"claims.{name}")
