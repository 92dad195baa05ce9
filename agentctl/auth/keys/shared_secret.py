"""Check shared secrets: they must be long, hard to guess, and not a public key.

If a verifier accepts its public key as an HMAC secret, anyone can sign tokens (RFC 8725 2.1). So a
key in any common encoding is rejected as a secret. No message repeats the secret.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, product

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agentctl.auth.tokens.algorithms import AlgorithmSpec
from agentctl.errors import InvalidKey

_MINIMUM_DIFFERENT_BYTES = 5

_PUBLIC_SAMPLES = frozenset(
    {
        b"a-string-secret-at-least-256-bits-long",
        b"a-valid-string-secret-that-is-at-least-512-bits-long-which-is-very-long",
        b"09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7",
        b"404E635266556A586E3272357538782F413F4428472B4B6250645367566B5970",
    }
)
"""Secrets of the sample tokens on jwt.io and of popular tutorials."""

_KEY_TEXT = re.compile(
    rb"-----?\W?(BEGIN|END)\W|^(\s*|\0\0\0.)(sk-)?(ssh-(rsa|dss|ed25519|ed448)|ecdsa-sha2-)"
)
"""PEM, and public keys of OpenSSH with the names of their algorithms in full: one in 262 thousand
random secrets begins with `sk-`.
"""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_MODULUS_BYTES = frozenset({256, 384, 512, 1024})
"""The usual sizes of an RSA modulus."""

_SMALL_FACTORS = 2_000
"""A modulus is the product of two large primes, so it has no factor below this number."""

_REMOVED_ENDINGS = tuple(
    bytes(breaks) for length in range(4) for breaks in product(b"\r\n", repeat=length)
)
"""Line breaks that `encode_secret` removes, and with which a binary key may end. One key in 268
million ends with more than three.
"""

_CURVES = (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1())


def encode_secret(text: str) -> bytes:
    """Return the bytes of a configured secret: UTF-8, without line breaks at the end.

    Raises:
        InvalidKey: it is not valid text.
    """
    try:
        return text.rstrip("\r\n").encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidKey("The shared secret is not valid text") from None


def check_secret(secret: bytes, spec: AlgorithmSpec, label: str) -> None:
    """Reject an HMAC secret that can be guessed or is public.

    Raises:
        InvalidKey: it is shorter than the hash (RFC 7518 3.2), has fewer than five different
            bytes, repeats a piece, is a known sample, or is a key in any encoding.
    """
    minimum_bytes = spec.hash_bits // 8
    if len(secret) < minimum_bytes:
        raise InvalidKey(
            f"{label} is a secret of {len(secret)} bytes",
            hint=f"{spec.name} needs at least {minimum_bytes}; "
            "`agentctl keys generate` creates one",
        )

    if (
        len(set(secret)) < _MINIMUM_DIFFERENT_BYTES
        or secret in _PUBLIC_SAMPLES
        or secret in (secret + secret)[1:-1]  # It repeats a piece.
    ):
        raise InvalidKey(f"{label} is a secret that is easy to guess")

    with_endings = (secret + ending for ending in _REMOVED_ENDINGS)
    if any(map(_is_key, chain(_decode(secret), with_endings))):
        raise InvalidKey(
            f"{label} is a key, not a shared secret",
            hint=f"{spec.name} needs a random secret; a public key is not secret",
        )


def _decode(secret: bytes) -> Iterator[bytes]:
    """Yield a secret, and what it is in UTF-16, hexadecimal, base64 or base64url."""
    plain = secret.removeprefix(_BYTE_ORDER_MARK)
    yield plain

    # ASCII text in UTF-16 has a zero byte beside each letter.
    narrow = plain.replace(b"\0", b"")
    yield narrow

    compact = b"".join(narrow.split())
    with suppress(ValueError):
        yield binascii.a2b_hex(compact.replace(b":", b""))

    standard = compact.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    with suppress(ValueError):
        yield base64.b64decode(standard + b"=" * (-len(standard) % 4))


def _is_key(data: bytes) -> bool:
    return (
        _KEY_TEXT.search(data) is not None
        or _is_json(data)
        or _is_der(data)
        or _is_modulus(data)
        or _is_point(data)
    )


def _is_json(data: bytes) -> bool:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict | list)


def _is_der(data: bytes) -> bool:
    """Return True for a key or certificate in DER, which begins with a SEQUENCE (X.690 8.9)."""
    if not data.startswith(b"\x30"):
        return False
    from cryptography import x509

    loaders = (
        serialization.load_der_public_key,
        lambda der: serialization.load_der_private_key(der, password=None),
        x509.load_der_x509_certificate,
    )
    for load in loaders:
        try:
            load(data)
        except ValueError:
            continue
        except (TypeError, UnsupportedAlgorithm):
            # A key with a password, or of an unsupported kind.
            return True
        else:
            return True
    return False


def _is_modulus(data: bytes) -> bool:
    """Return True if bytes have the size and form of an RSA modulus.

    One in thirty random secrets of exactly that size does too; no hash needs such a size.
    """
    digits = data.lstrip(b"\0")
    if len(digits) not in _MODULUS_BYTES:
        return False

    # The first bit of a modulus is set, and its primes are odd.
    if digits[0] < 0x80 or digits[-1] % 2 == 0:
        return False

    number = int.from_bytes(digits, "big")
    return all(number % factor for factor in range(3, _SMALL_FACTORS, 2))


def _is_point(data: bytes) -> bool:
    """Return True for an encoded point of a curve (SEC 1 2.3.3).

    One in 256 random secrets with the length of the short form is one too.
    """
    for curve in _CURVES:
        try:
            ec.EllipticCurvePublicKey.from_encoded_point(curve, data)
        except ValueError:
            continue
        return True
    return False
