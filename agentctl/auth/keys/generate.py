"""Making, naming, publishing and storing keys: what the `keys` commands and `init` stand on.

Parsing is in `material` and `jwk`, sets of keys are in `jws`.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from agentctl.auth.keys.files import read_key_file, read_private_key, write_private_key
from agentctl.auth.keys.material import VerificationKey, parse_keys
from agentctl.auth.keys.signing import PrivateKey, SigningKey, load_signing_key
from agentctl.auth.tokens.algorithms import AlgorithmSpec, get_algorithm
from agentctl.auth.tokens.jwk import EC_CURVES, public_jwk
from agentctl.auth.tokens.jwk import jwk_thumbprint as jwk_thumbprint
from agentctl.auth.tokens.strict import encode_base64url

__all__ = [
    "build_jwk",
    "build_public_jwks",
    "build_public_pem",
    "encode_public_pem",
    "generate_key",
    "key_thumbprint",
    "read_private_key",
    "read_public_keys",
    "signing_key_thumbprint",
    "write_private_key",
]

_RSA_BITS = 2048


def generate_key(algorithm: str, *, rsa_bits: int = _RSA_BITS) -> bytes:
    """A new key for `algorithm`: a PKCS #8 PEM, or for HS algorithms a line of random text.

    Args:
        algorithm: what the key is for.
        rsa_bits: the size of an RSA key.

    Raises:
        InvalidKey: no such algorithm.
    """
    spec = get_algorithm(algorithm)
    if spec.family == "oct":
        return secrets.token_urlsafe(spec.hash_bits // 8).encode("ascii") + b"\n"
    return _generate_private_key(spec, rsa_bits).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )


def _generate_private_key(spec: AlgorithmSpec, rsa_bits: int) -> PrivateKey:
    if spec.family == "RSA":
        return rsa.generate_private_key(public_exponent=65537, key_size=rsa_bits)
    if spec.family == "OKP":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(EC_CURVES[str(spec.curve)])


def signing_key_thumbprint(private: bytes, algorithm: str) -> str:
    """The RFC 7638 thumbprint of a signing key, as its public key would have it.

    Args:
        private: the bytes of the key file.
        algorithm: what the key is for.

    Raises:
        InvalidKey: the key is refused.
    """
    return key_thumbprint(load_signing_key(private, get_algorithm(algorithm)))


def key_thumbprint(key: SigningKey | VerificationKey) -> str:
    """The RFC 7638 thumbprint of a loaded key."""
    return jwk_thumbprint(_jwk_members(key))


def _jwk_members(key: SigningKey | VerificationKey) -> dict[str, str]:
    """What a key is made of, as a JWK has it, without what is private of a key pair."""
    if isinstance(key.material, bytes):
        return {"kty": "oct", "k": encode_base64url(key.material)}
    return public_jwk(key.public() if isinstance(key, SigningKey) else key.material)


def build_public_jwks(private: bytes, algorithm: str, key_id: str = "") -> dict[str, Any]:
    """The JWKS that lets others verify what a signing key signs.

    Args:
        private: the bytes of the key file.
        algorithm: what the key is for.
        key_id: its `kid`; empty: the thumbprint.

    Raises:
        InvalidKey: the key is refused, or is a shared secret, which is never published.
    """
    key = load_signing_key(private, get_algorithm(algorithm))
    key.public()
    return {"keys": [build_jwk(key, key_id)]}


def build_jwk(key: SigningKey, key_id: str = "") -> dict[str, Any]:
    """A key's entry of a JWKS. That of a shared secret is the secret itself.

    Args:
        key: the signing key.
        key_id: its `kid`; empty: the thumbprint.
    """
    kid = key_id or key_thumbprint(key)
    return {**_jwk_members(key), "kid": kid, "use": "sig", "alg": key.spec.name}


def build_public_pem(private: bytes, algorithm: str) -> bytes:
    """The PEM public key of a signing key, for `verification_key_files`.

    Raises:
        InvalidKey: the key is refused, or is a shared secret, which has no public part.
    """
    return encode_public_pem(load_signing_key(private, get_algorithm(algorithm)))


def encode_public_pem(key: SigningKey) -> bytes:
    """The PEM public key of a loaded signing key.

    Raises:
        InvalidKey: it is a shared secret.
    """
    return key.public().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_public_keys(path: Path, algorithm: str) -> list[VerificationKey]:
    """The verification keys in a file: PEM public keys, or the one secret of an HS algorithm.

    Raises:
        InvalidKey: the file or a key in it is refused; a secret that others can read, too.
    """
    spec = get_algorithm(algorithm)
    data = read_key_file(path, private=spec.family == "oct")
    text = data.decode("utf-8", "surrogateescape")
    return parse_keys(text, spec, f"Key file {path}")
