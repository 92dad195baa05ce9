"""Mint, inspect and verify tokens, for the `token` commands.

Imports of `jwt` and `cryptography` are inside functions, because `token mint` has to start fast.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from agentctl.auth.tokens.algorithms import MAXIMUM_TOKEN, get_algorithm
from agentctl.auth.tokens.claims import ClaimRules, check_claims, parse_claims
from agentctl.auth.tokens.grants import SCOPES_CLAIM
from agentctl.errors import InvalidToken, UsageError
from agentctl.records.authorization import (
    KNOWN_SCOPES,
    is_known_scope,
    list_scopes_of,
    suggest_scope,
)
from agentctl.records.times import format_rfc3339

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

DEFAULT_LIFETIME = timedelta(hours=1)
"""The lifetime of a minted token by default."""

MAXIMUM_LIFETIME = timedelta(days=3_650)
"""Maximum lifetime of any token, including tokens of service accounts."""

_TIME_CLAIMS = ("iat", "nbf", "exp")


def check_mintable_scopes(scopes: Iterable[str], admin_scope: str) -> None:
    """Raise UsageError for a scope that no operation requires, with a suggestion."""
    for scope in scopes:
        if scope == admin_scope or is_known_scope(scope):
            continue
        known_scopes = ", ".join((*KNOWN_SCOPES, admin_scope))
        hint = f"use user for all that a user needs, or one of: {known_scopes}"
        if near := suggest_scope(scope, admin_scope):
            hint = f"did you mean {near!r}?"
        elif own_scopes := list_scopes_of(scope):
            hint = f"the scopes of {own_scopes[0].partition(':')[0]}: {', '.join(own_scopes)}"
        raise UsageError(f"Unknown scope {scope!r}", hint=hint)


def mint_token(
    settings: Settings,
    subject: str | None = None,
    scopes: Iterable[str] = (),
    expires_in: timedelta = DEFAULT_LIFETIME,
    *,
    audience: str | None = None,
    session_id: str | None = None,
) -> str:
    """Sign a token with the key of `[signing]` that the configured server accepts.

    Args:
        expires_in: the lifetime, from one second to `MAXIMUM_LIFETIME`.
        audience: `aud`; None takes the configured audience if the server verifies it, else omits
            it.
        session_id: the default session of runs and cancels; None omits it.

    Raises:
        UsageError: a scope is unknown, or the server would not accept the token.
        InvalidKey: the signing key is rejected.
    """
    granted = list(dict.fromkeys(scopes))
    check_mintable_scopes(granted, settings.authorization.admin_scope)

    rules = ClaimRules.from_settings(settings)
    now = int(time.time())

    seconds = int(expires_in.total_seconds())
    if not 1 <= seconds <= MAXIMUM_LIFETIME.total_seconds():
        raise UsageError(
            f"The lifetime of a token must be from 1 second to {MAXIMUM_LIFETIME.days} days",
            hint="an account without an end: agentctl accounts create NAME --never-expires",
        )

    claims = {
        "iss": settings.authorization.issuer or None,
        "sub": subject,
        "aud": audience or rules.audience,
        "iat": now,
        "exp": now + seconds,
        "jti": os.urandom(16).hex(),
        SCOPES_CLAIM: granted,
        "session_id": session_id,
    }

    present_claims = {name: value for name, value in claims.items() if value is not None}
    payload = json.dumps(present_claims, separators=(",", ":")).encode("ascii")
    try:
        accepted_scopes = check_claims(payload, rules, time.time()).scopes
    except InvalidToken as failure:
        raise UsageError("The server would reject this token", cause=failure.reason) from None

    if not accepted_scopes.issuperset(granted):
        raise UsageError(
            "The server would not read the scopes of this token",
            cause=f"authorization.scopes_claim does not name the claim {SCOPES_CLAIM}",
            hint=f'add "{SCOPES_CLAIM}" to scopes_claim',
        )

    token = _sign_token(payload, settings)
    if len(token) > MAXIMUM_TOKEN:
        raise UsageError(
            f"The token would be {len(token)} bytes long",
            hint=f"a token may have {MAXIMUM_TOKEN} bytes; grant fewer scopes",
        )
    return token


def _sign_token(payload: bytes, settings: Settings) -> str:
    from agentctl.auth.keys.files import read_private_key
    from agentctl.auth.keys.signing import build_jws, key_thumbprint, load_signing_key

    spec = get_algorithm(settings.authorization.algorithm)
    key = load_signing_key(read_private_key(settings.signing.key_file), spec)
    return build_jws(payload, key, "JWT", settings.signing.key_id or key_thumbprint(key))


def inspect_token(token: str) -> dict[str, Any]:
    """Return the content of a token, without verifying anything.

    Returns:
        `header` and `claims` unchanged, `times` with `iat`, `nbf` and `exp` in RFC 3339, `expired`
        (None without `exp`), and `verified`, always false.

    Raises:
        InvalidToken: the text is not a JWT; `cause` has the reason.
    """
    from agentctl.auth.tokens.jws import parse_token

    try:
        parts = parse_token(token)
        claims = parse_claims(parts.payload)
    except InvalidToken as failure:
        failure.cause = failure.reason
        raise

    times = dict[str, str]()
    for name in _TIME_CLAIMS:
        time_text = _format_time(claims.get(name))
        if time_text is not None:
            times[name] = time_text

    is_expired = None
    if "exp" in times:
        is_expired = time.time() >= claims["exp"]

    return {
        "header": parts.header,
        "claims": claims,
        "times": times,
        "expired": is_expired,
        "verified": False,
    }


def _format_time(claim: object) -> str | None:
    """Return a NumericDate in RFC 3339, or None for another claim."""
    if isinstance(claim, bool) or not isinstance(claim, int | float):
        return None
    try:
        return format_rfc3339(int(claim * 1_000_000))
    except OverflowError:
        return None


def build_verification_report(token: str, settings: Settings) -> dict[str, Any]:
    """Verify a token as the configured server would, also with authorization off.

    Returns:
        `verified` true with `header`, `claims`, `subject`, `scopes` (those that count) and `admin`;
        or `verified` false with `check`, the failed check, its `reason`, and `cause` and `remedy`
        as in `auth explain`. `remote_keys` describes keys that are fetched over HTTP, else None.

    Raises:
        InvalidKey: a configured key is rejected.
        Unavailable: keys are fetched over HTTP and cannot be.
    """
    from agentctl.auth.explain.checks import diagnose
    from agentctl.auth.explain.credential import collect_facts
    from agentctl.auth.verifier import Verifier

    authorization = replace(settings.authorization, enabled=True)
    verifier = Verifier(replace(settings, authorization=authorization))

    failed: InvalidToken | None = None
    try:
        principal = verifier.identify_jwt(f"Bearer {token}")
    except InvalidToken as failure:
        failed = failure

    # Read the keys after the verification, which may have fetched other keys.
    assert verifier.keys is not None
    now = time.time()
    state = verifier.remote_state
    facts = collect_facts(token, settings, verifier.keys, stale=False, now=now)
    remote_keys = None if state is None else state.describe(now)

    if failed is not None:
        diagnosis = diagnose(failed.check, failed.reason, facts)
        return {
            "verified": False,
            "check": failed.check,
            "reason": failed.reason,
            "cause": diagnosis.cause,
            "remedy": diagnosis.remedy,
            "remote_keys": remote_keys,
        }

    return {
        "verified": True,
        "header": facts.header,
        "claims": facts.claims,
        "subject": principal.subject,
        "scopes": sorted(principal.scopes),
        "admin": principal.admin,
        "remote_keys": remote_keys,
    }
