"""What a verified token claims, checked (contract.md 6, RFC 7519 4.1, spec.md "Authentication" 4).

PyJWT's own checks are not used: they call `int()` on times, so that strings pass.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentctl.auth.scopes import well_formed
from agentctl.auth.strict import NotStrict, parse_object
from agentctl.errors import InvalidToken
from agentctl.records.ids import is_session_id

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

__all__ = ["ClaimRules", "Claims", "check"]

_MAXIMUM_SUBJECT = 255
_MAXIMUM_SCOPES = 256
_MAXIMUM_AUDIENCES = 16
_LAST_SECOND = 253_402_300_799
"""23:59:59 on the last day of the year 9999, in seconds since the epoch."""

_INVISIBLE = frozenset({"Cc", "Cf", "Cs"})
_RESERVED = ("sa:", "__")


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


def check(payload: bytes, rules: ClaimRules, now: float) -> Claims:
    """Check the payload of a token whose signature holds.

    Args:
        payload: the signed bytes.
        rules: what is demanded.
        now: the present, in seconds since the epoch.

    Raises:
        InvalidToken: a claim is malformed, or does not satisfy the rules.
    """
    try:
        members = parse_object(payload)
    except NotStrict as failure:
        raise InvalidToken(f"the payload {failure}") from None
    expires_at, issued_at = _times(members, rules, now)
    _check_issuer(members, rules)
    _check_audience(members, rules)
    return Claims(
        _subject(members, rules),
        _scopes(members.get("scopes"), rules.admin_scope),
        _session_id(members),
        expires_at,
        issued_at,
    )


def _times(
    members: Mapping[str, Any], rules: ClaimRules, now: float
) -> tuple[float | None, float | None]:
    """`exp` must lie ahead of now (spec.md: passed is rejected), `nbf` and `iat` must not."""
    expires_at, issued_at = _moment(members, "exp"), _moment(members, "iat")
    if expires_at is None and rules.require_exp:
        raise InvalidToken("the token has no exp")
    if expires_at is not None and now >= expires_at:
        raise InvalidToken("the token has expired")
    for name, value in (("nbf", _moment(members, "nbf")), ("iat", issued_at)):
        if value is not None and value > now + rules.leeway:
            raise InvalidToken(f"the token's {name} lies in the future")
    return expires_at, issued_at


def _moment(members: Mapping[str, Any], name: str) -> float | None:
    """RFC 7519 2: a NumericDate is a JSON number; true and "1" are none."""
    if name not in members:
        return None
    value = members[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidToken(f"the token's {name} is not a number")
    if not 0 <= value <= _LAST_SECOND:
        raise InvalidToken(f"the token's {name} is no time between 1970 and 9999")
    return value


def _subject(members: Mapping[str, Any], rules: ClaimRules) -> str | None:
    if "sub" not in members:
        if rules.require_sub:
            raise InvalidToken("the token has no sub")
        return None
    subject = members["sub"]
    if not isinstance(subject, str) or not 1 <= len(subject) <= _MAXIMUM_SUBJECT:
        raise InvalidToken(f"the token's sub is not a string of 1 to {_MAXIMUM_SUBJECT} characters")
    if subject != subject.strip() or any(map(_invisible, subject)):
        raise InvalidToken("the token's sub has invisible characters or spaces around it")
    if _folded(subject).startswith(_RESERVED):
        raise InvalidToken("the token's sub is a reserved name")
    return subject


def _invisible(character: str) -> bool:
    return unicodedata.category(character) in _INVISIBLE


def _folded(text: str) -> str:
    """`text` as it is compared with reserved names: look-alikes of one width and case are one."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _check_issuer(members: Mapping[str, Any], rules: ClaimRules) -> None:
    if rules.issuer is not None and members.get("iss") != rules.issuer:
        raise InvalidToken("the token's iss is not the configured issuer")


def _check_audience(members: Mapping[str, Any], rules: ClaimRules) -> None:
    audiences = _audiences(members)
    if rules.audience is not None and rules.audience not in audiences:
        raise InvalidToken("the token's aud is not the configured audience")


def _audiences(members: Mapping[str, Any]) -> list[str]:
    """RFC 7519 4.1.3: `aud` is a string or an array of strings."""
    value = members.get("aud", [])
    audiences = [value] if isinstance(value, str) else value
    if not isinstance(audiences, list) or not all(isinstance(name, str) for name in audiences):
        raise InvalidToken("the token's aud is not a string or an array of strings")
    if len(audiences) > _MAXIMUM_AUDIENCES:
        raise InvalidToken(f"the token's aud has more than {_MAXIMUM_AUDIENCES} entries")
    return audiences


def _scopes(value: object, admin_scope: str) -> frozenset[str]:
    """spec.md "Authentication" 4: what is malformed is no permission, and no error."""
    if not isinstance(value, list) or len(value) > _MAXIMUM_SCOPES:
        return frozenset()
    return frozenset(
        scope
        for scope in value
        if isinstance(scope, str) and (scope == admin_scope or well_formed(scope))
    )


def _session_id(members: Mapping[str, Any]) -> str | None:
    """It is the default session of runs and cancels, so it has the grammar of session ids."""
    if "session_id" not in members:
        return None
    value = members["session_id"]
    if not isinstance(value, str) or not is_session_id(value):
        raise InvalidToken("the token's session_id is not a session id")
    return value
