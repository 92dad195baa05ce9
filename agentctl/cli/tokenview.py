"""What a token says, for people: times as spans, scopes as the operations that they open."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from agentctl.cli.durations import spoken
from agentctl.cli.table import Column, short_time

__all__ = [
    "COLUMNS",
    "HELD",
    "OF_ACCOUNT",
    "allowed_by",
    "decoded",
    "held",
    "of_account",
    "rows",
    "summary",
    "view",
]

COLUMNS = [Column("name"), Column("value", look="whole"), Column("meaning", look="whole")]
HELD = [
    Column("verified"),
    Column("subject"),
    Column("scopes", lambda record: ", ".join(record["scopes"])),
    Column("admin"),
    Column("expires_at"),
]

OF_ACCOUNT = [Column("credential"), Column("checksum")]

_MEANINGS = {
    "alg": "the algorithm of the signature",
    "kid": "the key that signed it",
    "sub": "whom it stands for",
    "iss": "who issued it",
    "aud": "whom it is for",
    "jti": "its own id",
    "session_id": "default session of its runs and cancels",
}


def view(seen: Mapping[str, Any], reason: str | None, admin_scope: str) -> dict[str, Any]:
    """A token as `token inspect -o json` shows it.

    Args:
        seen: what `tokens.inspect` found.
        reason: why it was not verified; None: it was.
        admin_scope: the scope that allows everything.
    """
    return {
        "verified": reason is None,
        "reason": reason,
        "header": seen["header"],
        "claims": seen["claims"],
        "times": seen["times"],
        "expired": seen["expired"],
        "scopes": [
            {"scope": scope, "allows": list(allowed_by(scope, admin_scope))}
            for scope in _scopes(seen["claims"])
        ],
    }


def rows(shown: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A view as lines of name, value and meaning."""
    yield _row("verified", shown["verified"], shown["reason"])
    for name, value in shown["header"].items():
        yield _row(f"header.{name}", value, _MEANINGS.get(name))
    for name, value in shown["claims"].items():
        if name != "scopes" or not isinstance(value, list):
            yield _row(f"claims.{name}", value, _meaning(name, value, shown["times"]))
    for entry in shown["scopes"]:
        allows = ", ".join(entry["allows"])
        yield _row("scope", entry["scope"], f"allows {allows}" if allows else "allows nothing")


def held(report: Mapping[str, Any]) -> dict[str, Any]:
    """A token that was verified, as `token verify` shows it."""
    from agentctl.records.times import rfc3339

    exp = report["claims"].get("exp")
    return {
        "verified": True,
        "subject": report["subject"],
        "scopes": report["scopes"],
        "admin": report["admin"],
        "expires_at": None if exp is None else rfc3339(int(exp * 1_000_000)),
    }


def of_account(token: str) -> dict[str, Any]:
    """What can be told of a service account's token: nothing is in it but chance and a checksum."""
    from agentctl.auth.accounts import has_checksum

    checksum = "right" if has_checksum(token) else "wrong"
    return {"credential": "service account token", "checksum": checksum}


def decoded(token: str) -> list[dict[str, Any]]:
    """Header and claims of a token that was made here: nothing is checked, PyJWT not loaded."""
    import base64
    import json

    parts = token.split(".")[:2]
    return [json.loads(base64.urlsafe_b64decode(part + "==")) for part in parts]


def summary(header: Mapping[str, Any], claims: Mapping[str, Any]) -> Iterator[str]:
    """A token that was just minted, in a few lines."""
    from agentctl.records.times import rfc3339

    yield f"minted for {claims.get('sub') or 'nobody in particular: it has no sub'}"
    yield f"  allows:  {', '.join(claims['scopes']) or 'nothing: it has no scopes'}"
    for name in ("aud", "iss", "session_id"):
        if name in claims:
            yield f"  {name + ':':8} {claims[name]}"
    end = short_time(rfc3339(claims["exp"] * 1_000_000))
    yield f"  expires in {spoken(claims['exp'] - claims['iat'])} ({end})"
    yield f"  key:     {header['kid']}"


def allowed_by(scope: str, admin_scope: str) -> Iterator[str]:
    """The operations that a scope opens by itself, by id (contract.md 1), lists in part too."""
    from agentctl.auth.policy import POLICY, Needs
    from agentctl.auth.scopes import satisfies, well_formed

    if scope == admin_scope:
        yield "everything"
    if scope == admin_scope or not well_formed(scope):
        return
    parts = scope.split(":")
    identifier = parts[1] if len(parts) == 3 else None
    for operation, rule in POLICY.items():
        if not isinstance(rule, Needs):
            continue
        one = identifier if rule.id_param or rule.listed else None
        if satisfies({scope}, rule.resource, rule.action, one):
            yield operation


def _row(name: str, value: object, meaning: str | None) -> dict[str, Any]:
    return {"name": name, "value": value, "meaning": meaning}


def _scopes(claims: Mapping[str, Any]) -> list[str]:
    """The entries of `scopes` that are text; what is no array grants nothing (spec.md)."""
    scopes = claims.get("scopes")
    return [scope for scope in scopes if isinstance(scope, str)] if isinstance(scopes, list) else []


def _meaning(name: str, value: Any, times: Mapping[str, str]) -> str | None:
    if name not in times:
        return _MEANINGS.get(name)
    ahead = value - time.time()
    span = f"in {spoken(ahead)}" if ahead > 0 else f"{spoken(-ahead)} ago"
    told = {
        "exp": f"expires {span}" if ahead > 0 else f"expired {span}",
        "nbf": f"good from {span}" if ahead > 0 else f"good since {span}",
        "iat": f"issued {span}",
    }
    return f"{told[name]} ({times[name]})"
