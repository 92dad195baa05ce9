"""Tokens of all kinds, and what servers of AgentOS and this server answer to them.

`TOKENS` has one entry for each kind, `DIFFERENCES` those that this server answers differently.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import httpx2
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

__all__ = ["DIFFERENCES", "TOKENS", "find_differences"]

Statuses = tuple[int, int, int]
"""Status codes of: list agents, list sessions, run the agent `echo`."""

Header = Callable[[str], str]
"""Builds the value of the header field Authorization from the PEM text of a private key."""

_HOUR = 3_600


def _claims(**changes: Any) -> dict[str, Any]:
    """Return valid claims with changes; a value of None removes the claim."""
    now = int(time.time())
    base = {"sub": "ann", "iat": now, "exp": now + _HOUR, "scopes": ["agent_os:admin"]}
    return {name: value for name, value in (base | changes).items() if value is not None}


@cache
def _load_key(text: str) -> Any:
    """Load a private key once: it takes 40 ms."""
    return serialization.load_pem_private_key(text.encode(), None)


def _sign(**changes: Any) -> Header:
    return lambda key: f"Bearer {jwt.encode(_claims(**changes), _load_key(key), 'RS256')}"


def _at(claim: str, seconds: int) -> Header:
    """Return a token with a time, relative to now."""
    return lambda key: _sign(**{claim: int(time.time()) + seconds})(key)


def _encode(value: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _without_signature(key: str) -> str:
    return f"Bearer {_encode({'alg': 'none', 'typ': 'JWT'})}.{_encode(_claims())}."


def _with_shared_secret(key: str) -> str:
    return f"Bearer {jwt.encode(_claims(), 'a' * 64, algorithm='HS256')}"


@cache
def _generate_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65_537, key_size=2_048)


def _with_other_key(key: str) -> str:
    return f"Bearer {jwt.encode(_claims(), _generate_key(), algorithm='RS256')}"


TOKENS: dict[str, Header] = {
    "administrator": _sign(),
    "agents:read": _sign(scopes=["agents:read"]),
    "agents:echo:read": _sign(scopes=["agents:echo:read"]),
    "agents:*:read": _sign(scopes=["agents:*:read"]),
    "agents:echo:run": _sign(scopes=["agents:echo:run"]),
    "agents:other:run": _sign(scopes=["agents:other:run"]),
    "sessions:read": _sign(scopes=["sessions:read"]),
    "system:*": _sign(scopes=["system:*"]),
    "unknown scope": _sign(scopes=["fly:high"]),
    "no scopes": _sign(scopes=None),
    "empty scopes": _sign(scopes=[]),
    "scopes are one text": _sign(scopes="agents:read"),
    "a number among the scopes": _sign(scopes=["agents:read", 5]),
    "no sub": _sign(sub=None),
    "empty sub": _sign(sub=""),
    "reserved sub": _sign(sub="SA:1"),
    "session_id": _sign(session_id="tokens"),
    "no exp": _sign(exp=None),
    "exp is a text": _sign(exp="tomorrow"),
    "expired": _at("exp", -_HOUR),
    "expired less than 10 s ago": _at("exp", -3),
    "nbf in the future": _at("nbf", _HOUR),
    "iat in the future": _at("iat", _HOUR),
    "audience": _sign(aud="another"),
    "other key": _with_other_key,
    "shared secret": _with_shared_secret,
    "no signature": _without_signature,
    "empty": lambda key: "Bearer",
    "not a token": lambda key: "Bearer abc",
    "without the word Bearer": lambda key: _sign()(key).removeprefix("Bearer "),
    "bearer in lower case": lambda key: _sign()(key).replace("Bearer", "bearer"),
}
"""The kinds of tokens by their name."""


_ACCEPTED = (200, 200, 200)
_INVALID = (401, 401, 401)
_DENIED = (403, 403, 403)
_READS_AGENTS = (200, 403, 403)

_EXPECTED: dict[str, Statuses] = {
    **dict.fromkeys(("administrator", "no sub", "session_id", "no exp", "audience"), _ACCEPTED),
    "bearer in lower case": _ACCEPTED,
    **dict.fromkeys(("agents:read", "agents:echo:read", "agents:*:read"), _READS_AGENTS),
    "agents:echo:run": (403, 403, 200),
    "sessions:read": (403, 200, 403),
    **dict.fromkeys(("agents:other:run", "system:*", "unknown scope"), _DENIED),
    **dict.fromkeys(("no scopes", "empty scopes"), _DENIED),
}
"""Statuses that both have, of tokens that are valid. All others are 401."""


class Difference(NamedTuple):
    """A token with other answers here than on AgentOS.

    Attributes:
        here: the statuses of this server.
        release_2, release_3: those of AgentOS.
        reason: the reason for the difference.
    """

    here: Statuses
    release_2: Statuses
    release_3: Statuses
    reason: str


DIFFERENCES: dict[str, Difference] = {
    "scopes are one text": Difference(
        _DENIED,
        _READS_AGENTS,
        _READS_AGENTS,
        "a text of several scopes would grant nothing without notice; `auth explain` reports it",
    ),
    "a number among the scopes": Difference(
        _READS_AGENTS,
        _INVALID,
        _DENIED,
        "one wrong entry grants nothing, and does not change the others",
    ),
    "empty sub": Difference(
        _INVALID, _ACCEPTED, _ACCEPTED, "an empty name cannot separate the data of users"
    ),
    "reserved sub": Difference(
        _INVALID, _ACCEPTED, _ACCEPTED, "`sa:`, in any case, would name a service account"
    ),
    "expired less than 10 s ago": Difference(
        _INVALID, _ACCEPTED, _ACCEPTED, "`exp` has no leeway; `nbf` and `iat` have it"
    ),
    "without the word Bearer": Difference(
        _INVALID, _ACCEPTED, _ACCEPTED, "RFC 6750 requires the scheme"
    ),
}
"""The kinds of tokens with other answers here. docs/agentos.md has this table."""


def find_differences(url: str, key: str, release: int | None) -> dict[str, tuple[Statuses, ...]]:
    """Return the tokens that a server does not answer as expected: found and expected statuses.

    Args:
        key: PEM text of the private key of its tokens.
        release: the first number of a release of AgentOS; None: this server.
    """
    wrong: dict[str, tuple[Statuses, ...]] = {}
    form = {"message": "x", "stream": "false", "session_id": "tokens"}
    requests = (
        ("GET", "/agents", None),
        ("GET", "/sessions", None),
        ("POST", "/agents/echo/runs", form),
    )
    with httpx2.Client(base_url=url, timeout=30) as client:
        for name, build in TOKENS.items():
            answers = [
                client.request(method, path, data=data, headers={"Authorization": build(key)})
                for method, path, data in requests
            ]
            found = tuple(answer.status_code for answer in answers)
            expected = _EXPECTED.get(name, _INVALID)
            if name in DIFFERENCES:
                difference = DIFFERENCES[name]
                expected = {None: difference.here, 2: difference.release_2}.get(
                    release, difference.release_3
                )
            if found != expected:
                wrong[name] = (found, expected)
    return wrong
