"""Tokens for people: times as durations, scopes as the operations that they grant."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agentctl.cli.show.table import Column, format_time
from agentctl.errors import InvalidToken
from agentctl.records.times import format_rfc3339, format_span

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

VIEW_COLUMNS = [Column("name"), Column("value", look="whole"), Column("meaning", look="whole")]
VERIFIED_COLUMNS = [
    Column("verified"),
    Column("subject"),
    Column("scopes", lambda record: ", ".join(record["scopes"])),
    Column("admin"),
    Column("expires_at"),
]

ACCOUNT_TOKEN_COLUMNS = [Column("credential"), Column("checksum")]

_MEANINGS = {
    "alg": "signature algorithm",
    "kid": "key id of the signing key",
    "sub": "subject: the user that the token represents",
    "iss": "issuer",
    "aud": "audience",
    "jti": "token id",
    "session_id": "default session for runs and cancels",
}


def build_view(
    inspected: Mapping[str, Any], reason: str | None, settings: Settings | None
) -> dict[str, Any]:
    """Return the document of `token inspect -o json`.

    Args:
        inspected: the result of `inspect_token`.
        reason: the reason why the token is not verified; None if it is verified.
        settings: the configuration with the names of claims; None for the defaults.

    Returns:
        A scope has the `claim` that grants it, and its `role` or None. `unread` has the claims that
        may grant permissions, each with the line of the configuration that would read it.
    """
    from agentctl.auth.explain.origins import find_unread_claims, split_value, suggest_setting
    from agentctl.auth.policy import operations_granted_by
    from agentctl.auth.tokens.grants import ScopeOrigin, ScopeRules, find_claim, trace_scopes
    from agentctl.config.settings import Authorization

    claims = inspected["claims"]
    rules = ScopeRules.from_settings(settings.authorization if settings else Authorization())
    granted_origins = set(trace_scopes(claims, rules))

    # The texts of claims of scopes, also those that grant nothing; then the scopes of roles.
    origins = list[ScopeOrigin]()
    for name in rules.scopes_claims:
        for text in split_value(find_claim(claims, name)):
            if isinstance(text, str):
                origins.append(ScopeOrigin(text.removeprefix(rules.prefix), name))
    origins += sorted(origin for origin in granted_origins if origin.role is not None)

    def list_allowed(origin: ScopeOrigin) -> list[str]:
        if origin not in granted_origins:
            return []
        if origin.scope == rules.admin_scope:
            return ["everything"]
        return list(operations_granted_by(origin.scope))

    return {
        "verified": reason is None,
        "reason": reason,
        "header": inspected["header"],
        "claims": claims,
        "times": inspected["times"],
        "expired": inspected["expired"],
        "scopes": [{**origin._asdict(), "allows": list_allowed(origin)} for origin in origins],
        "unread": {
            claim.name: suggest_setting([claim], rules)
            for claim in find_unread_claims(claims, rules)
        },
    }


def view_rows(view: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a view as rows of name, value and meaning."""
    from agentctl.records.authorization import suggest_scope

    yield _view_row("verified", view["verified"], view["reason"])
    for name, value in view["header"].items():
        yield _view_row(f"header.{name}", value, _MEANINGS.get(name))
    for name, value in view["claims"].items():
        # The scopes have rows of their own below.
        if name == "scopes" and name not in view["unread"] and isinstance(value, list):
            continue
        meaning = _describe_unread(name, view["unread"])
        if meaning is None:
            meaning = _describe_claim(name, value, view["times"])
        yield _view_row(f"claims.{name}", value, meaning)

    for entry in view["scopes"]:
        if entry["allows"]:
            meaning = f"grants {', '.join(entry['allows'])}"
        else:
            meaning = "grants nothing"
            similar_scope = suggest_scope(entry["scope"])
            if similar_scope:
                meaning += f": did you mean {similar_scope}?"
        if entry["role"] is not None:
            meaning = f"by the role {entry['role']} of {entry['claim']}: {meaning}"
        elif entry["claim"] != "scopes":
            meaning = f"in {entry['claim']}: {meaning}"
        yield _view_row("scope", entry["scope"], meaning)


def verified_record(report: Mapping[str, Any]) -> dict[str, Any]:
    exp = report["claims"].get("exp")
    return {
        "verified": True,
        "subject": report["subject"],
        "scopes": report["scopes"],
        "admin": report["admin"],
        "expires_at": None if exp is None else format_rfc3339(int(exp * 1_000_000)),
    }


def account_token_record(token: str) -> dict[str, Any]:
    """Return the record of a service account token, which has only random text and a checksum."""
    from agentctl.auth.tokens.account_tokens import has_valid_checksum

    checksum = "right" if has_valid_checksum(token) else "wrong"
    return {"credential": "service account token", "checksum": checksum}


def minted_lines(token: str) -> Iterator[str]:
    """Yield the lines that describe a new token, without importing PyJWT."""
    import base64

    parts = token.split(".")[:2]
    header, claims = (json.loads(base64.urlsafe_b64decode(part + "==")) for part in parts)
    yield f"minted for {claims.get('sub') or 'no subject: it has no sub'}"
    yield f"  grants:  {', '.join(claims['scopes']) or 'nothing: it has no scopes'}"
    for name in ("aud", "iss", "session_id"):
        if name in claims:
            yield f"  {name + ':':8} {claims[name]}"
    end = format_time(format_rfc3339(claims["exp"] * 1_000_000))
    yield f"  expires in {format_span(claims['exp'] - claims['iat'])} ({end})"
    yield f"  key:     {header['kid']}"


def token_times(token: str | None) -> dict[str, str]:
    """Return the times of issue and expiry of a JWT; nothing for any other credential."""
    from agentctl.auth.tokens import mint

    if token is None:
        return {}
    try:
        inspected = mint.inspect_token(token)
    except InvalidToken:
        return {}

    claims = inspected["claims"]
    times = inspected["times"]
    texts = dict[str, str]()
    for name, label in {"iat": "issued", "exp": "expires"}.items():
        if name in times:
            texts[label] = f"{_format_distance(claims[name])} ({format_time(times[name])})"
    return texts


def describe_rejection(token: str) -> str:
    """Return why a server has rejected a token, as far as the token shows it.

    The server itself does not tell it: the reason would help to guess tokens.
    """
    from agentctl.auth.tokens import mint
    from agentctl.auth.tokens.account_tokens import check_account_token, is_account_token

    try:
        if is_account_token(token):
            check_account_token(token)
            return "the service account was revoked, has expired, or belongs to another server"
        inspected = mint.inspect_token(token)
    except InvalidToken as failure:
        return failure.reason

    claims = inspected["claims"]
    times = inspected["times"]
    if inspected["expired"]:
        return f"the token expired {_format_distance(claims['exp'])} ({times['exp']})"
    if "nbf" in times and claims["nbf"] > time.time():
        return f"the token is not valid yet: it begins {_format_distance(claims['nbf'])}"
    return "the server does not know its key, or expects another issuer, audience or claim"


def _format_distance(moment: float) -> str:
    ahead = moment - time.time()
    return f"in {format_span(ahead)}" if ahead > 0 else f"{format_span(-ahead)} ago"


def _describe_unread(name: str, unread: Mapping[str, str]) -> str | None:
    """Return why a claim grants nothing; None for a claim that is read, or grants nothing."""
    if name == "scopes" and name not in unread:
        return "grants nothing: it is not an array"
    lines = [line for path, line in unread.items() if f"{path}.".startswith(f"{name}.")]
    return f"not read: {lines[0]}" if lines else None


def _view_row(name: str, value: object, meaning: str | None) -> dict[str, Any]:
    return {"name": name, "value": value, "meaning": meaning}


def _describe_claim(name: str, value: Any, times: Mapping[str, str]) -> str | None:
    if name not in times:
        return _MEANINGS.get(name)

    is_future = value > time.time()
    words = {
        "exp": "expires" if is_future else "expired",
        "nbf": "valid from" if is_future else "valid since",
        "iat": "issued",
    }
    return f"{words[name]} {_format_distance(value)} ({times[name]})"
