"""Build tokens of any shape, without the code under test."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

NOW = 1_800_000_000
SECRET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
Signer = Callable[[bytes], bytes]


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def token(header: Any, payload: Any, sign: Signer) -> str:
    """Build a compact JWS from bytes, or from other values as JSON."""
    first = header if isinstance(header, bytes) else compact(header)
    second = payload if isinstance(payload, bytes) else compact(payload)
    return seal(f"{b64(first)}.{b64(second)}", sign)


def seal(signing_input: str, sign: Signer) -> str:
    """Sign segments with any content."""
    return f"{signing_input}.{b64(sign(signing_input.encode('utf-8', 'surrogatepass')))}"


@dataclass(frozen=True)
class Pair:
    """A private key with its public key."""

    private: Any

    @property
    def public(self) -> Any:
        return self.private.public_key()

    @property
    def pem(self) -> str:
        return self.spki(serialization.Encoding.PEM).decode()

    @property
    def private_pem(self) -> str:
        return self.private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()

    def spki(self, encoding: serialization.Encoding) -> bytes:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.public.public_bytes(encoding, form)


# The keys are constant: a random key has, now and then, bytes that a test does not expect.
_RSA_PRIMES = json.loads(Path(__file__).with_name("rsa_primes.json").read_text())
_PRIVATE_VALUE = int.from_bytes(hashlib.sha256(b"agentctl").digest(), "big")


@cache
def rsa_pair(number: int = 1, bits: int = 2048, exponent: int = 65537) -> Pair:
    """Return an RSA key of rsa_primes.json."""
    p, q = (int(prime, 16) for prime in _RSA_PRIMES[f"{number}, {bits} bits, e = {exponent}"])
    d = pow(exponent, -1, (p - 1) * (q - 1))
    first = rsa.rsa_crt_dmp1(d, p)
    second = rsa.rsa_crt_dmq1(d, q)
    public = rsa.RSAPublicNumbers(exponent, p * q)
    numbers = rsa.RSAPrivateNumbers(p, q, d, first, second, rsa.rsa_crt_iqmp(p, q), public)
    return Pair(numbers.private_key(unsafe_skip_rsa_key_validation=True))


@cache
def ec_pair(curve: str = "P-256") -> Pair:
    curves = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
    return Pair(ec.derive_private_key(_PRIVATE_VALUE, curves[curve]))


@cache
def ed_pair() -> Pair:
    return Pair(ed25519.Ed25519PrivateKey.from_private_bytes(_PRIVATE_VALUE.to_bytes(32, "big")))


_HASHES = {256: hashes.SHA256(), 384: hashes.SHA384(), 512: hashes.SHA512()}


def rs(pair: Pair, bits: int = 256) -> Signer:
    return lambda data: pair.private.sign(data, padding.PKCS1v15(), _HASHES[bits])


def ps(pair: Pair, bits: int = 256, salt: int | None = None) -> Signer:
    length = bits // 8 if salt is None else salt
    pss = padding.PSS(padding.MGF1(_HASHES[bits]), salt_length=length)
    return lambda data: pair.private.sign(data, pss, _HASHES[bits])


def es_der(pair: Pair, bits: int = 256) -> Signer:
    return lambda data: pair.private.sign(data, ec.ECDSA(_HASHES[bits]))


def es(pair: Pair, bits: int = 256) -> Signer:
    size = (pair.private.curve.key_size + 7) // 8

    def sign(data: bytes) -> bytes:
        r, s = decode_dss_signature(es_der(pair, bits)(data))
        return r.to_bytes(size, "big") + s.to_bytes(size, "big")

    return sign


def ed(pair: Pair) -> Signer:
    return pair.private.sign


def hs(secret: bytes, bits: int = 256) -> Signer:
    return lambda data: hmac.new(secret, data, getattr(hashlib, f"sha{bits}")).digest()


def fixed(signature: bytes) -> Signer:
    """Return a signer that always returns these bytes."""
    return lambda _: signature
