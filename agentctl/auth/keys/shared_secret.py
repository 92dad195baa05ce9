"""What may be a shared secret: long, not to be guessed, and no key that others know.

A verifier that takes its own public key as HMAC secret lets everybody sign (RFC 8725 2.1); so a key
is refused in every encoding that people paste. No message repeats the secret.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agentctl.auth.tokens.algorithms import AlgorithmSpec
from agentctl.errors import InvalidKey

__all__ = ["check_secret", "encode_secret"]

_MINIMUM_DIFFERENT_BYTES = 5
_PUBLIC_SAMPLES = frozenset(
    {
        b"a-string-secret-at-least-256-bits-long",
        b"a-valid-string-secret-that-is-at-least-512-bits-long-which-is-very-long",
        b"09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7",
        b"404E635266556A586E3272357538782F413F4428472B4B6250645367566B5970",
    }
)
"""Secrets in the sample tokens of a well-known site, and in tutorials that are copied."""

_KEY_TEXT = re.compile(rb"-----?\W?(BEGIN|END)\W|^\s*(ssh-|ecdsa-|sk-)|^\0\0\0.(ssh-|ecdsa-|sk-)")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_MODULUS_BYTES = frozenset({256, 384, 512, 1024})
_SMALL_FACTORS = 2_000
_CURVES = (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1())


def encode_secret(text: str) -> bytes:
    """The bytes of a configured secret: its UTF-8 without the line ends at its end.

    Raises:
        InvalidKey: it is not text.
    """
    try:
        return text.rstrip("\r\n").encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidKey("The shared secret is not valid text") from None


def check_secret(secret: bytes, spec: AlgorithmSpec, label: str) -> None:
    """Refuse an HMAC secret that can be guessed or that others may know.

    Raises:
        InvalidKey: shorter than the hash (RFC 7518 3.2), of hardly any different bytes, a short
            piece repeated, a known sample, or a key in any encoding (a public one is known to all).
    """
    needed = spec.hash_bits // 8
    if len(secret) < needed:
        raise InvalidKey(
            f"{label} is a secret of {len(secret)} bytes",
            hint=f"{spec.name} needs at least {needed}; `agentctl keys generate` makes one",
        )
    if (
        len(set(secret)) < _MINIMUM_DIFFERENT_BYTES
        or secret in _PUBLIC_SAMPLES
        or _is_repetition(secret)
    ):
        raise InvalidKey(f"{label} is a secret that can be guessed")
    if any(map(_is_key, _decodings(secret))):
        raise InvalidKey(
            f"{label} is a key and no shared secret",
            hint=f"{spec.name} needs a random secret; a public key is known to everybody",
        )


def _is_repetition(secret: bytes) -> bool:
    """Whether it is one piece two times or more: found in itself, turned by less than a round."""
    return secret in (secret + secret)[1:-1]


def _decodings(secret: bytes) -> Iterator[bytes]:
    """The secret, and what it is under a byte order mark, UTF-16, hexadecimal and base64."""
    plain = secret.removeprefix(_BYTE_ORDER_MARK)
    narrow = plain.replace(b"\0", b"")
    yield from (plain, narrow)
    compact = b"".join(narrow.split())
    standard = compact.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    for decode, text in (
        (binascii.a2b_hex, compact.replace(b":", b"")),
        (base64.b64decode, standard + b"=" * (-len(standard) % 4)),
    ):
        try:
            yield decode(text)
        except ValueError:
            continue


def _is_key(data: bytes) -> bool:
    """Whether bytes are a key: PEM, SSH, JSON, DER, an RSA modulus, or a point of a curve."""
    return (
        _KEY_TEXT.search(data) is not None
        or _is_json(data)
        or _is_der(data)
        or _is_modulus(data)
        or _is_point(data)
    )


def _is_json(data: bytes) -> bool:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict | list)


def _is_der(data: bytes) -> bool:
    """Every DER key and certificate is a SEQUENCE; only those are tried."""
    if not data.startswith(b"\x30"):
        return False
    from cryptography import x509

    for load in (
        serialization.load_der_public_key,
        lambda der: serialization.load_der_private_key(der, password=None),
        x509.load_der_x509_certificate,
    ):
        try:
            load(data)
        except ValueError:
            continue
        except (TypeError, UnsupportedAlgorithm):
            return True  # a key with a password, or of a kind that nothing here can use
        return True
    return False


def _is_modulus(data: bytes) -> bool:
    """Whether bytes have the size and form of an RSA modulus.

    Of random bytes of just that size, more than any hash needs, one in thirty does too.
    """
    digits = data.lstrip(b"\0")
    if len(digits) not in _MODULUS_BYTES or digits[0] < 0x80 or digits[-1] % 2 == 0:
        return False
    number = int.from_bytes(digits, "big")
    return all(number % factor for factor in range(3, _SMALL_FACTORS, 2))


def _is_point(data: bytes) -> bool:
    """Whether bytes are a point as SEC 1 2.3.3 writes it.

    Of random bytes as many as the short form has, one in 256 are too.
    """
    for curve in _CURVES:
        try:
            ec.EllipticCurvePublicKey.from_encoded_point(curve, data)
        except ValueError:
            continue
        return True
    return False
