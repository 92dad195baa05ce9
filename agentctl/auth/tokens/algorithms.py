"""The supported signature algorithms (RFC 7518 3), and the keys that each one needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from agentctl.config.settings import Algorithm

MAXIMUM_TOKEN = 8_192
"""Maximum length of a token, in bytes."""

Family = Literal["RSA", "EC", "OKP", "oct"]


@dataclass(frozen=True, slots=True)
class Curve:
    """An elliptic curve (RFC 7518 6.2.1.1)."""

    name: str
    """The value of `crv`."""

    algorithm: Algorithm
    """The only algorithm that uses the curve (RFC 7518 3.4)."""

    size: int
    """The length of a coordinate in bytes."""


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """A signature algorithm."""

    name: Algorithm
    """The value of `alg`, compared exactly."""

    family: Family
    """The `kty` of its keys."""

    hash_bits: int
    """The bits of its SHA-2 hash; 0 for EdDSA.

    An HMAC secret must have at least as many bits (RFC 7518 3.2).
    """

    curve: str | None = None
    """The `crv` of its keys, or None."""


CURVES = {
    "P-256": Curve("P-256", "ES256", 32),
    "P-384": Curve("P-384", "ES384", 48),
    "P-521": Curve("P-521", "ES512", 66),
}

ALGORITHMS: dict[str, AlgorithmSpec] = {
    spec.name: spec
    for spec in (
        AlgorithmSpec("RS256", "RSA", 256),
        AlgorithmSpec("RS384", "RSA", 384),
        AlgorithmSpec("RS512", "RSA", 512),
        AlgorithmSpec("PS256", "RSA", 256),
        AlgorithmSpec("PS384", "RSA", 384),
        AlgorithmSpec("PS512", "RSA", 512),
        AlgorithmSpec("ES256", "EC", 256, "P-256"),
        AlgorithmSpec("ES384", "EC", 384, "P-384"),
        AlgorithmSpec("ES512", "EC", 512, "P-521"),
        AlgorithmSpec("EdDSA", "OKP", 0, "Ed25519"),
        AlgorithmSpec("HS256", "oct", 256),
        AlgorithmSpec("HS384", "oct", 384),
        AlgorithmSpec("HS512", "oct", 512),
    )
}


def get_algorithm(name: str) -> AlgorithmSpec:
    """Return the algorithm of this name; InvalidKey if it is unknown, such as `none`."""
    spec = ALGORITHMS.get(name)
    if spec is None:
        from agentctl.errors import InvalidKey

        raise InvalidKey(
            "The algorithm is not supported", hint=f"use one of: {', '.join(ALGORITHMS)}"
        )
    return spec
