"""Generate keys and build their thumbprints, JWKS and PEM forms, for `keys` commands and `init`."""

from __future__ import annotations

import secrets
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from agentctl.auth.keys.material import VerificationKey
from agentctl.auth.keys.signing import PrivateKey, SigningKey, load_signing_key
from agentctl.auth.tokens.algorithms import get_algorithm
from agentctl.auth.tokens.jwk import EC_CURVES, jwk_thumbprint, public_jwk
from agentctl.records.strict import encode_base64url

_RSA_BITS = 2048


def generate_key(algorithm: str, *, rsa_bits: int = _RSA_BITS) -> bytes:
    """Generate a key: PKCS #8 in PEM, or for HS algorithms a line of random text.

    Args:
        algorithm: the name of the algorithm.
        rsa_bits: the size of an RSA key.

    Raises:
        InvalidKey: the algorithm is not supported.
    """
    spec = get_algorithm(algorithm)
    if spec.family == "oct":
        return secrets.token_urlsafe(spec.hash_bits // 8).encode("ascii") + b"\n"
    key: PrivateKey
    if spec.family == "RSA":
        key = rsa.generate_private_key(public_exponent=65537, key_size=rsa_bits)
    elif spec.family == "OKP":
        key = ed25519.Ed25519PrivateKey.generate()
    else:
        key = ec.generate_private_key(EC_CURVES[str(spec.curve)])
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def signing_key_thumbprint(private: bytes, algorithm: str) -> str:
    """Return the RFC 7638 thumbprint of a signing key, which is that of its public key.

    Args:
        private: the content of the key file.
        algorithm: the name of the algorithm.

    Raises:
        InvalidKey: the key is rejected.
    """
    return key_thumbprint(load_signing_key(private, get_algorithm(algorithm)))


def key_thumbprint(key: SigningKey | VerificationKey) -> str:
    """Return the RFC 7638 thumbprint of a loaded key."""
    return jwk_thumbprint(_jwk_members(key))


def _jwk_members(key: SigningKey | VerificationKey) -> dict[str, str]:
    if isinstance(key.material, bytes):
        return {"kty": "oct", "k": encode_base64url(key.material)}
    return public_jwk(key.public() if isinstance(key, SigningKey) else key.material)


def build_public_jwks(private: bytes, algorithm: str, key_id: str = "") -> dict[str, Any]:
    """Build the JWKS with the public key of a signing key.

    Args:
        private: the content of the key file.
        algorithm: the name of the algorithm.
        key_id: the `kid`; empty for the thumbprint.

    Raises:
        InvalidKey: the key is rejected, or is a shared secret, which is never published.
    """
    key = load_signing_key(private, get_algorithm(algorithm))
    key.public()
    return {"keys": [build_jwk(key, key_id)]}


def build_jwk(key: SigningKey, key_id: str = "") -> dict[str, Any]:
    """Build the entry of a key in a JWKS. The entry of a shared secret contains the secret.

    Args:
        key: the signing key.
        key_id: the `kid`; empty for the thumbprint.
    """
    kid = key_id or key_thumbprint(key)
    return {**_jwk_members(key), "kid": kid, "use": "sig", "alg": key.spec.name}


def build_public_pem(private: bytes, algorithm: str) -> bytes:
    """Build the PEM public key of a key file, for `verification_key_files`.

    Raises:
        InvalidKey: the key is rejected, or is a shared secret, which has no public key.
    """
    return encode_public_pem(load_signing_key(private, get_algorithm(algorithm)))


def encode_public_pem(key: SigningKey) -> bytes:
    """Encode the public key of a loaded signing key as PEM.

    Raises:
        InvalidKey: it is a shared secret.
    """
    return key.public().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
