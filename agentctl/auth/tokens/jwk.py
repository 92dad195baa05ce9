"""JSON Web Keys (RFC 7517, RFC 7518 6, RFC 8037) and their thumbprints (RFC 7638).

PyJWT reads a key, this module decides if it is accepted (decision 138). PyJWT is imported
inside a function, because `token mint` has to start fast.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from agentctl.auth.keys.material import PublicKey, VerificationKey, check_public_key, jwk_curve
from agentctl.auth.keys.shared_secret import check_secret
from agentctl.auth.tokens.algorithms import CURVES, AlgorithmSpec
from agentctl.errors import InvalidKey
from agentctl.records.strict import NotStrict, decode_base64url, encode_base64url
from agentctl.records.text import is_storable

_PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})

EC_CURVES = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
"""The curves of `algorithms.CURVES` as objects of `cryptography`."""

_THUMBPRINT_MEMBERS = {
    "RSA": ("e", "kty", "n"),
    "EC": ("crv", "kty", "x", "y"),
    "OKP": ("crv", "kty", "x"),
    "oct": ("k", "kty"),
}


@dataclass(frozen=True, slots=True)
class SkippedKey:
    """An entry of a key set that is not used here, and the reason."""

    kid: str | None
    """Its `kid`; None if it has none, or if that is not a text."""

    reason: str
    """A clause about "it", without key material."""

    number: int
    """The position of the entry in its set, from 1."""

    is_fault: bool = False
    """True for an entry that someone has to correct: malformed, weak, private or ambiguous.

    False for an entry with another purpose.
    """

    @property
    def label(self) -> str:
        """The entry in a message: its position and its `kid`."""
        name = "without kid" if self.kid is None else repr(self.kid[:100])
        return f"JWKS key {self.number} ({name})"


def algorithm_of_jwk(entry: Mapping[str, Any]) -> str | None:
    """Return the signature algorithm of an entry: its `alg`, else the default of its type."""
    alg = entry.get("alg")
    kty = entry.get("kty")
    crv = entry.get("crv")

    if isinstance(alg, str):
        return alg

    if kty == "EC" and isinstance(crv, str):
        return CURVES[crv].algorithm if crv in CURVES else None
    if kty == "OKP":
        return "EdDSA" if crv == "Ed25519" else None

    return {"RSA": "RS256", "oct": "HS256"}.get(str(kty))


def reason_to_skip(entry: Mapping[str, Any], spec: AlgorithmSpec, label: str) -> str | None:
    """Return the reason why an entry cannot verify tokens of this algorithm, or None.

    Raises:
        InvalidKey: a member about the purpose of the key is malformed (RFC 7517 4).
    """
    for name in ("kty", "use", "alg", "kid", "crv"):
        value = entry.get(name, "")
        if not isinstance(value, str) or not is_storable(value):
            raise InvalidKey(f"{label} has a {name} that is not a string")
    if "kty" not in entry:
        raise InvalidKey(f"{label} has no kty")
    if entry.get("use", "sig") != "sig":
        return "it is for another use"

    if "verify" not in _read_operations(entry, label):
        return "its key_ops do not allow to verify"
    if entry.get("alg", spec.name) != spec.name:
        return "it is for another algorithm"
    if entry["kty"] != spec.family:
        return "it is of another key type"
    if "alg" not in entry and spec.curve is not None and entry.get("crv", spec.curve) != spec.curve:
        return "it is on another curve"
    return None


def _read_operations(entry: Mapping[str, Any], label: str) -> list[str]:
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or not all(isinstance(name, str) for name in operations):
        raise InvalidKey(f"{label} has key_ops that are not an array of strings")
    if len(set(operations)) != len(operations):
        raise InvalidKey(f"{label} names an operation twice in key_ops")
    return operations


def key_from_jwk(entry: Mapping[str, Any], spec: AlgorithmSpec, label: str) -> VerificationKey:
    """Load the verification key of an entry; InvalidKey if it is malformed, private or weak."""
    if spec.family != "oct" and not _PRIVATE_MEMBERS.isdisjoint(entry):
        raise InvalidKey(f"{label} is a private key", hint="publish its public members only")

    kid = entry.get("kid")

    if spec.family == "oct":
        encoded_secret = entry.get("k")
        if not isinstance(encoded_secret, str):
            raise InvalidKey(f"{label} has no k")
        try:
            secret = decode_base64url(encoded_secret)
        except NotStrict as failure:
            raise InvalidKey(f"{label} has a member k that {failure}") from None
        check_secret(secret, spec, label)
        return VerificationKey(spec, secret, kid)

    if spec.curve is not None and entry.get("crv") != spec.curve:
        raise InvalidKey(f"{label} is not on the curve {spec.curve} that {spec.name} demands")
    from jwt import PyJWK, PyJWTError

    # Only the members of the key itself: PyJWT must not read `alg`, `use` or `key_ops` its way.
    members = {name: entry.get(name) for name in _THUMBPRINT_MEMBERS[spec.family]}
    try:
        key = check_public_key(PyJWK(members, spec.name).key, spec, label)
    except (PyJWTError, ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        raise InvalidKey(f"{label} is not a valid {spec.family} key") from None

    # PyJWT accepts padding, leading zeros and short coordinates: two texts would be one key.
    if public_jwk(key) != members:
        raise InvalidKey(f"{label} has numbers in another form than RFC 7518 6 demands")

    return VerificationKey(spec, key, kid)


def public_jwk(key: PublicKey) -> dict[str, str]:
    """Return the members of a public key: `kty` and its parameters."""
    if isinstance(key, rsa.RSAPublicKey):
        rsa_numbers = key.public_numbers()
        return {
            "kty": "RSA",
            "n": _encode_integer(rsa_numbers.n),
            "e": _encode_integer(rsa_numbers.e),
        }
    if isinstance(key, ed25519.Ed25519PublicKey):
        return {"kty": "OKP", "crv": "Ed25519", "x": encode_base64url(key.public_bytes_raw())}

    numbers = key.public_numbers()
    curve = jwk_curve(key)
    size = CURVES[curve].size
    return {
        "kty": "EC",
        "crv": curve,
        "x": encode_base64url(numbers.x.to_bytes(size, "big")),
        "y": encode_base64url(numbers.y.to_bytes(size, "big")),
    }


def _encode_integer(value: int) -> str:
    return encode_base64url(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def jwk_thumbprint(jwk: Mapping[str, Any]) -> str:
    """Return the SHA-256 thumbprint of a key in base64url (RFC 7638 3).

    Raises:
        InvalidKey: a required member is missing.
    """
    names = _THUMBPRINT_MEMBERS.get(str(jwk.get("kty")))
    members = {name: jwk.get(name) for name in names or ()}
    if names is None or not all(isinstance(value, str) for value in members.values()):
        raise InvalidKey("The key lacks a member that its thumbprint needs")
    text = json.dumps(members, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return encode_base64url(hashlib.sha256(text.encode("utf-8")).digest())
