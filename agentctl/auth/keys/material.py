"""Parse and check verification keys, each bound to exactly one algorithm (RFC 8725 3.1).

A key that is weak or of the wrong kind is rejected when it is loaded, not with the first request.
No message repeats key material.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from agentctl.auth.keys.shared_secret import check_secret, encode_secret
from agentctl.auth.tokens.algorithms import AlgorithmSpec
from agentctl.errors import InvalidKey

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

_MINIMUM_RSA_BITS = 2048
_MAXIMUM_RSA_BITS = 8192
_MINIMUM_EXPONENT = 65537
_MAXIMUM_EXPONENT_BITS = 64
"""With a longer exponent and a modulus above 3072 bits, OpenSSL rejects every signature."""

_CURVE_NAMES = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}

PEM_BLOCK = r"-----BEGIN (?P<kind>[A-Z0-9 ]+)-----[^-]*(?:-(?!----)[^-]*)*-----END (?P=kind)-----"
"""The pattern of a PEM block (RFC 7468 2), whose time is linear in the text without an END line."""

_PRIVATE_LABEL = "PRIVATE KEY"
_PUBLIC_LABELS = frozenset({"PUBLIC KEY", "RSA PUBLIC KEY"})


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A key that verifies tokens of one algorithm."""

    spec: AlgorithmSpec

    material: PublicKey | bytes = field(repr=False)
    """The parsed public key, or the bytes of an HMAC secret."""

    kid: str | None = None
    """The key id in a JWKS; None for a PEM key or a secret."""


def parse_keys(text: str, spec: AlgorithmSpec, label: str) -> list[VerificationKey]:
    """Parse PEM public keys, or for HS algorithms one shared secret.

    Args:
        label: the source of the text, for error messages.

    Raises:
        InvalidKey: a key is private, weak, or not of the kind that the algorithm needs.
    """
    if spec.family == "oct":
        secret = encode_secret(text)
        check_secret(secret, spec, label)
        return [VerificationKey(spec, secret)]

    text = _decode_pem(text)
    blocks = list(re.finditer(PEM_BLOCK, text))

    # A damaged boundary is not skipped as text around the keys (RFC 7468 3): its key would be lost.
    is_whole = text.count("-----BEGIN") == text.count("-----END") == len(blocks)
    if not blocks or not is_whole or "------BEGIN" in text:
        raise InvalidKey(
            f"{label} is not a PEM public key",
            hint=f'{spec.name} needs "-----BEGIN PUBLIC KEY-----"; set jwks_file for a JWKS',
        )
    return [VerificationKey(spec, _parse_pem(block[0], block[1], spec, label)) for block in blocks]


def _decode_pem(text: str) -> str:
    r"""Return the PEM text of a variable that can have no line breaks.

    Files of variables and secret stores keep a key in one line: with the two characters `\n` for a
    line break, or in base64. PEM has no backslash, so there is no other reading of it.
    """
    if "-----" not in text:
        compact = "".join(text.split()).replace("-", "+").replace("_", "/")
        try:
            decoded = base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
        except ValueError:
            return text
        if not decoded.lstrip().startswith(b"-----BEGIN"):
            return text
        text = decoded.decode("utf-8", "surrogateescape")
    return text.replace("\\r", "").replace("\\n", "\n")


def _parse_pem(pem: str, kind: str, spec: AlgorithmSpec, label: str) -> PublicKey:
    if kind.endswith(_PRIVATE_LABEL):
        raise InvalidKey(
            f"{label} is a private key",
            hint="name the public key here; [signing] and [audit] have the private one",
        )
    if kind not in _PUBLIC_LABELS:
        raise InvalidKey(
            f"{label} is not a PEM public key",
            hint="extract the key from a certificate with `openssl x509 -pubkey -noout`",
        )

    try:
        key = serialization.load_pem_public_key(pem.encode("ascii", "replace"))
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidKey(
            f"{label} is not a readable PEM public key",
            hint="copy the whole key again, with its line breaks",
        ) from None
    return check_public_key(key, spec, label)


def check_public_key(key: object, spec: AlgorithmSpec, label: str) -> PublicKey:
    """Return `key` if it has the kind and strength that the algorithm needs.

    Raises:
        InvalidKey: it has another kind or curve, or is weak (RFC 7518 3.3 to 3.5).
    """
    if spec.family == "RSA" and isinstance(key, RSAPublicKey):
        if not _MINIMUM_RSA_BITS <= key.key_size <= _MAXIMUM_RSA_BITS:
            raise InvalidKey(
                f"{label} is an RSA key of {key.key_size} bits",
                hint=f"use {_MINIMUM_RSA_BITS} to {_MAXIMUM_RSA_BITS} bits",
            )

        numbers = key.public_numbers()
        if numbers.n % 2 == 0:
            raise InvalidKey(f"{label} is not a valid RSA key")

        is_short = numbers.e < _MINIMUM_EXPONENT
        is_long = numbers.e.bit_length() > _MAXIMUM_EXPONENT_BITS
        if is_short or is_long or numbers.e % 2 == 0:
            raise InvalidKey(f"{label} is an RSA key with an unsound exponent", hint="use 65537")

        return key

    if spec.family == "EC" and isinstance(key, EllipticCurvePublicKey):
        if jwk_curve(key) != spec.curve:
            raise InvalidKey(f"{label} is not on the curve {spec.curve} that {spec.name} demands")
        return key

    if spec.family == "OKP" and isinstance(key, Ed25519PublicKey):
        return key

    raise InvalidKey(f"{label} is not a key for {spec.name}")


def jwk_curve(key: EllipticCurvePublicKey) -> str:
    """Return the JWK name of a curve (RFC 7518 6.2.1.1), or its OpenSSL name without one."""
    return _CURVE_NAMES.get(key.curve.name, key.curve.name)
