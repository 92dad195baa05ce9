"""Making tokens and looking into them: what the `token` commands stand on.

Nothing heavy is imported until a key is needed: a local `token mint` is a short command.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from agentctl.auth import scopes as scope_names
from agentctl.auth.tokens.algorithms import get_algorithm
from agentctl.auth.tokens.claims import ClaimRules, check_claims, parse_claims
from agentctl.auth.tokens.strict import encode_base64url
from agentctl.errors import InvalidToken, UsageError
from agentctl.records.times import format_rfc3339

if TYPE_CHECKING:
    from agentctl.auth.keys.signing import SigningKey
    from agentctl.config.settings import Settings

__all__ = [
    "DEFAULT_LIFETIME",
    "build_verification_report",
    "check_mintable_scopes",
    "inspect_token",
    "mint_token",
]

DEFAULT_LIFETIME = timedelta(hours=1)

_TIME_CLAIMS = ("iat", "nbf", "exp")


def check_mintable_scopes(scopes: Iterable[str], admin_scope: str) -> None:
    """Refuse scopes that no operation asks for: they would grant nothing.

    Raises:
        UsageFailed: names the first such scope and the known one nearest to it.
    """
    for scope in scopes:
        if scope == admin_scope or scope_names.is_known_scope(scope):
            continue
        near = scope_names.suggest_scope(scope, admin_scope)
        everything = f"the scopes are: {', '.join((*scope_names.KNOWN_SCOPES, admin_scope))}"
        raise UsageError(
            f"Scope {scope!r} is not known",
            hint=f"did you mean {near!r}?" if near else everything,
        )


def mint_token(
    settings: Settings,
    subject: str | None = None,
    scopes: Iterable[str] = (),
    expires_in: timedelta = DEFAULT_LIFETIME,
    *,
    audience: str | None = None,
    session_id: str | None = None,
) -> str:
    """A token signed with the key of `[signing]`, for the `[authorization]` of the settings.

    Args:
        settings: the configuration.
        subject: `sub`, or None for a token without.
        scopes: what it grants.
        expires_in: how long it is good for.
        audience: `aud`; None: the configured one when `aud` is verified, else none.
        session_id: the session that runs and cancels belong to by default.

    Raises:
        UsageFailed: a scope is not known, or the server would not accept such a token.
        InvalidKey: the signing key is refused.
    """
    granted = list(dict.fromkeys(scopes))
    check_mintable_scopes(granted, settings.authorization.admin_scope)
    claims = {
        "iss": settings.authorization.issuer or None,
        "sub": subject,
        "aud": audience or ClaimRules.from_settings(settings).audience,
        **_lifetime_claims(expires_in),
        "jti": os.urandom(16).hex(),
        "scopes": granted,
        "session_id": session_id,
    }
    payload = _encode_json({name: value for name, value in claims.items() if value is not None})
    _check_acceptable(payload, settings)
    token = _sign_token(payload, settings)
    if len(token) > settings.limits.token_bytes:
        raise UsageError(
            f"The token would be {len(token)} bytes long",
            hint=f"limits.token_bytes is {settings.limits.token_bytes}; grant fewer scopes",
        )
    return token


def _lifetime_claims(expires_in: timedelta) -> dict[str, int]:
    now, seconds = int(time.time()), int(expires_in.total_seconds())
    if seconds < 1:
        raise UsageError("A token must be good for at least a second")
    return {"iat": now, "exp": now + seconds}


def _check_acceptable(payload: bytes, settings: Settings) -> None:
    """Hold a new token to the rules that the server will hold it to."""
    try:
        check_claims(payload, ClaimRules.from_settings(settings), time.time())
    except InvalidToken as failure:
        raise UsageError("The server would not accept such a token", cause=failure.reason) from None


def _sign_token(payload: bytes, settings: Settings) -> str:
    from agentctl.auth.keys.files import read_private_key
    from agentctl.auth.keys.signing import load_signing_key, sign

    spec = get_algorithm(settings.authorization.algorithm)
    key = load_signing_key(read_private_key(settings.signing.key_file), spec)
    header = {"alg": spec.name, "kid": settings.signing.key_id or _thumbprint_of(key), "typ": "JWT"}
    signing_input = f"{encode_base64url(_encode_json(header))}.{encode_base64url(payload)}"
    signature = sign(signing_input.encode("ascii"), key)
    return f"{signing_input}.{encode_base64url(signature)}"


def _thumbprint_of(key: SigningKey) -> str:
    from agentctl.auth.keys.generate import key_thumbprint

    return key_thumbprint(key)


def _encode_json(value: dict[str, Any]) -> bytes:
    """JSON as it is signed; a lone surrogate stays an escape, for the claims check to refuse."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def inspect_token(token: str) -> dict[str, Any]:
    """What a token says, without verifying anything.

    Returns:
        `header` and `claims` as they stand, `times` with `iat`, `nbf` and `exp` in RFC 3339,
        `expired` (None without `exp`), and `verified`, always false.

    Raises:
        InvalidToken: it is no token; `cause` says why.
    """
    from agentctl.auth.tokens.jws import parse_token

    try:
        parts = parse_token(token)
        claims = parse_claims(parts.payload)
    except InvalidToken as failure:
        failure.cause = failure.reason
        raise
    exp = claims.get("exp")
    return {
        "header": parts.header,
        "claims": claims,
        "times": {name: text for name in _TIME_CLAIMS if (text := _format_time(claims.get(name)))},
        "expired": None if exp is None or not _format_time(exp) else time.time() >= exp,
        "verified": False,
    }


def _format_time(value: object) -> str | None:
    """A NumericDate in RFC 3339, or None for what is no such number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return format_rfc3339(int(value * 1_000_000))
    except OverflowError:
        return None


def build_verification_report(token: str, settings: Settings) -> dict[str, Any]:
    """What the server of these settings would make of a token, authorization on or off.

    Returns:
        `verified` with either `check`, the step that it fails, `reason`, and in the words of
        explain `cause` and `remedy`; or what it stands for: `header`, `claims`, `subject`, `scopes`
        (those that count), `admin`.

    Raises:
        InvalidKey: the configured keys are refused.
    """
    from agentctl.auth.explain.checks import diagnose
    from agentctl.auth.explain.credential import collect_facts
    from agentctl.auth.verifier import Verifier

    given = replace(settings.authorization, enabled=True)
    verifier = Verifier(replace(settings, authorization=given))
    assert verifier.keys is not None
    facts = collect_facts(token, settings, verifier.keys, stale=False, now=time.time())
    try:
        principal = verifier.principal(f"Bearer {token}")
    except InvalidToken as failure:
        told = diagnose(failure.check, failure.reason, facts)
        return {
            "verified": False,
            "check": failure.check,
            "reason": failure.reason,
            "cause": told.cause,
            "remedy": told.remedy,
        }
    return {
        "verified": True,
        "header": facts.header,
        "claims": facts.claims,
        "subject": principal.subject,
        "scopes": sorted(principal.scopes),
        "admin": principal.admin,
    }
