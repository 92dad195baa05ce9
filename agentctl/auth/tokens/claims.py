"""What a verified token claims, checked (contract.md 6, RFC 7519 4.1, spec.md "Authentication" 4).

PyJWT's own checks are not used: they call `int()` on times, so that strings pass.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentctl.auth.scopes import is_well_formed
from agentctl.auth.tokens.strict import NotStrict, parse_object
from agentctl.errors import InvalidToken
from agentctl.operations import MAXIMUM_SCOPES, MAXIMUM_USER_ID_LENGTH
from agentctl.records.ids import is_session_id

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

__all__ = [
    "ClaimRules",
    "Claims",
    "RawClaims",
    "check_aud",
    "check_claims",
    "check_exp",
    "check_iat",
    "check_iss",
    "check_nbf",
    "check_scopes",
    "check_session_id",
    "check_sub",
    "is_reserved_subject",
    "parse_claims",
]

RawClaims = Mapping[str, Any]
"""Claims as they stand in a token."""


_MAXIMUM_AUDIENCES = 16
_LAST_SECOND = 253_402_300_799
"""23:59:59 on the last day of the year 9999, in seconds since the epoch."""

_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks that show nothing (Default_Ignorable_Code_Point beyond control and format)."""

_RESERVED = ("sa:", "__", "local:", "system:")


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """What is demanded of claims.

    Attributes:
        audience: what `aud` must be or contain; None: not compared.
        issuer: what `iss` must be; None: not read.
        require_exp: a token without `exp` is refused.
        require_sub: a token without `sub` is refused.
        leeway: seconds that `nbf` and `iat` may lie ahead; `exp` has none.
        admin_scope: a scope that counts whatever its form.
    """

    audience: str | None = None
    issuer: str | None = None
    require_exp: bool = False
    require_sub: bool = False
    leeway: float = 10
    admin_scope: str = "agent_os:admin"

    @classmethod
    def from_settings(cls, settings: Settings) -> ClaimRules:
        """The rules of `[authorization]`; the audience by default is `server.id`."""
        given = settings.authorization
        return cls(
            audience=(given.audience or settings.server.id) if given.verify_audience else None,
            issuer=given.issuer or None,
            require_exp=given.require_exp,
            require_sub=given.require_sub,
            leeway=given.leeway_seconds,
            admin_scope=given.admin_scope,
        )


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims that hold.

    Attributes:
        subject: `sub`, or None.
        scopes: the well-formed entries of `scopes`.
        session_id: `session_id`, or None.
        expires_at: `exp` in seconds since the epoch, or None: the token never expires.
        issued_at: `iat`, likewise.
    """

    subject: str | None
    scopes: frozenset[str]
    session_id: str | None
    expires_at: float | None
    issued_at: float | None


def check_claims(payload: bytes, rules: ClaimRules, now: float) -> Claims:
    """Check the payload of a token whose signature holds: every step in turn.

    Args:
        payload: the signed bytes.
        rules: what is demanded.
        now: the present, in seconds since the epoch.

    Raises:
        InvalidToken: a claim is malformed, or does not satisfy the rules.
    """
    members = parse_claims(payload)
    expires_at = check_exp(members, rules, now)
    check_nbf(members, rules, now)
    issued_at = check_iat(members, rules, now)
    check_iss(members, rules, now)
    check_aud(members, rules, now)
    subject = check_sub(members, rules, now)
    scopes = check_scopes(members, rules, now)
    session_id = check_session_id(members, rules, now)
    return Claims(subject, scopes, session_id, expires_at, issued_at)


def parse_claims(payload: bytes) -> dict[str, Any]:
    """Step `claims.form`: the claims as they stand in the payload.

    Raises:
        InvalidToken: it is no strict JSON object.
    """
    try:
        return parse_object(payload)
    except NotStrict as failure:
        raise InvalidToken(f"the payload {failure}", check="claims.form") from None


def check_exp(members: RawClaims, rules: ClaimRules, now: float) -> float | None:
    """Step `claims.exp`: it lies ahead of now, without leeway (spec.md: passed is rejected)."""
    expires_at = _read_time(members, "exp")
    if expires_at is None and rules.require_exp:
        raise _invalid_claim("exp", "the token has no exp")
    if expires_at is not None and now >= expires_at:
        raise _invalid_claim("exp", "the token has expired")
    return expires_at


def check_nbf(members: RawClaims, rules: ClaimRules, now: float) -> float | None:
    """Step `claims.nbf`: it does not lie ahead of now by more than the leeway."""
    return _check_not_future(members, "nbf", rules, now)


def check_iat(members: RawClaims, rules: ClaimRules, now: float) -> float | None:
    """Step `claims.iat`: it does not lie ahead of now by more than the leeway."""
    return _check_not_future(members, "iat", rules, now)


def _check_not_future(members: RawClaims, name: str, rules: ClaimRules, now: float) -> float | None:
    value = _read_time(members, name)
    if value is not None and value > now + rules.leeway:
        raise _invalid_claim(name, f"the token's {name} lies in the future")
    return value


def _read_time(members: RawClaims, name: str) -> float | None:
    """RFC 7519 2: a NumericDate is a JSON number; true and "1" are none."""
    if name not in members:
        return None
    value = members[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid_claim(name, f"the token's {name} is not a number")
    if not 0 <= value <= _LAST_SECOND:
        raise _invalid_claim(name, f"the token's {name} is no time between 1970 and 9999")
    return value


def check_iss(members: RawClaims, rules: ClaimRules, now: float) -> None:
    """Step `claims.iss`: exactly the configured issuer, when one is configured."""
    if rules.issuer is not None and members.get("iss") != rules.issuer:
        raise _invalid_claim("iss", "the token's iss is not the configured issuer")


def check_aud(members: RawClaims, rules: ClaimRules, now: float) -> list[str]:
    """Step `claims.aud`: well-formed, and exactly the configured audience or with it among them."""
    audiences = _read_audiences(members)
    if rules.audience is not None and rules.audience not in audiences:
        raise _invalid_claim("aud", "the token's aud is not the configured audience")
    return audiences


def _read_audiences(members: RawClaims) -> list[str]:
    """RFC 7519 4.1.3: `aud` is a string or an array of strings."""
    value = members.get("aud", [])
    audiences = [value] if isinstance(value, str) else value
    if not isinstance(audiences, list) or not all(isinstance(name, str) for name in audiences):
        raise _invalid_claim("aud", "the token's aud is not a string or an array of strings")
    if len(audiences) > _MAXIMUM_AUDIENCES:
        raise _invalid_claim("aud", f"the token's aud has more than {_MAXIMUM_AUDIENCES} entries")
    return audiences


def check_sub(members: RawClaims, rules: ClaimRules, now: float) -> str | None:
    """Step `claims.sub`: a plain string that is not reserved for records of our own."""
    if "sub" not in members:
        if rules.require_sub:
            raise _invalid_claim("sub", "the token has no sub")
        return None
    subject = members["sub"]
    if not isinstance(subject, str) or not 1 <= len(subject) <= MAXIMUM_USER_ID_LENGTH:
        text = f"the token's sub is not a string of 1 to {MAXIMUM_USER_ID_LENGTH} characters"
        raise _invalid_claim("sub", text)
    if subject != subject.strip() or any(map(_is_invisible, subject)):
        raise _invalid_claim("sub", "the token's sub has invisible characters or spaces around it")
    if is_reserved_subject(subject):
        raise _invalid_claim("sub", "the token's sub is a reserved subject")
    return subject


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in _INVISIBLE_CATEGORIES


def is_reserved_subject(subject: str) -> bool:
    """Whether a name is one that only records of our own bear: `sa:`, `__`, `local:`, `system:`.

    A token must not be able to pass for a service account, for a user of the machine, or for
    ourselves in the audit.
    """
    return _normalize_subject(subject).startswith(_RESERVED)


def _normalize_subject(text: str) -> str:
    """`text` as it is compared with reserved names: one for all widths, cases and empty marks."""
    text = _IGNORABLE.sub("", text)
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def check_scopes(members: RawClaims, rules: ClaimRules, now: float) -> frozenset[str]:
    """Step `claims.scopes`: those that count. What is malformed grants nothing and is no error.

    spec.md "Authentication" 4.
    """
    value = members.get("scopes")
    if not isinstance(value, list) or len(value) > MAXIMUM_SCOPES:
        return frozenset()
    return frozenset(
        scope
        for scope in value
        if isinstance(scope, str) and (scope == rules.admin_scope or is_well_formed(scope))
    )


def check_session_id(members: RawClaims, rules: ClaimRules, now: float) -> str | None:
    """Step `claims.session_id`: the default session of runs and cancels has their ids' grammar."""
    if "session_id" not in members:
        return None
    value = members["session_id"]
    if not isinstance(value, str) or not is_session_id(value):
        raise _invalid_claim("session_id", "the token's session_id is not a session id")
    return value


def _invalid_claim(name: str, reason: str) -> InvalidToken:
    return InvalidToken(reason, check=f"claims.{name}")
