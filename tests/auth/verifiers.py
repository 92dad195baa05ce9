"""Verifiers with clocks that tests control, and headers for them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentctl.auth.explain.checks import JWT_CHECKS
from agentctl.auth.keys.material import parse_keys
from agentctl.auth.tokens.algorithms import get_algorithm
from agentctl.auth.tokens.jwk import public_jwk
from agentctl.auth.tokens.jws import KeySet
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Limits, Settings
from tests.kit.forged_tokens import NOW, Pair, rs, rsa_pair, token

OLD = rsa_pair(1)
NEW = rsa_pair(2)


class Clock:
    """A wall clock and a monotonic clock that tests move."""

    def __init__(self) -> None:
        self.wall = float(NOW)
        self.steady = 1_000.0

    def move(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


def verifier(clock: Clock, given: Authorization, limits: Limits | None = None) -> Verifier:
    """One that lives by the clock."""
    settings = Settings(authorization=given, limits=limits or Limits())
    return Verifier(settings, clock=lambda: clock.wall, monotonic=lambda: clock.steady)


def pem_only(**more: Any) -> Authorization:
    """`[authorization]` with one key."""
    return Authorization(verification_keys=(OLD.pem,), **more)


def bearer(claims: dict[str, Any], pair: Pair = OLD, **header: Any) -> str:
    """An Authorization header with an RS256 token."""
    return "Bearer " + token({"alg": "RS256", **header}, claims, rs(pair))


def load_texts(texts: Iterable[str], algorithm: str) -> KeySet:
    """A key set of PEM public keys, or of shared secrets."""
    spec = get_algorithm(algorithm)
    numbered = enumerate(texts, start=1)
    keys = [key for number, text in numbered for key in parse_keys(text, spec, f"Key {number}")]
    return KeySet.from_keys(spec, keys)


def jwks(*named: tuple[str, Pair]) -> str:
    """A set of public keys with their names."""
    return json.dumps({"keys": [{**public_jwk(pair.public), "kid": kid} for kid, pair in named]})


def replace_file(path: Path, text: str) -> None:
    """Replace a file by a rename."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


JWT_CHECK_NAMES = tuple(check.name for check in JWT_CHECKS)
"""The names of the checks of a JWT, in order."""
