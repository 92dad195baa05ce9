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

from agentctl.auth.algorithms import Spec, spec_of
from agentctl.auth.jwk import EC_CURVES, public_jwk
from agentctl.auth.jwk import thumbprint as jwk_thumbprint
from agentctl.auth.keyfiles import read_key_file, read_private_key, write_private_key
from agentctl.auth.material import PublicKey, VerificationKey, keys_from_text
from agentctl.auth.signing import PrivateKey, SigningKey, load_signing_key
from agentctl.auth.strict import encode_base64url

__all__ = [
    "generate",
    "public_jwks",
    "public_pem",
    "read_private_key",
    "read_public_keys",
    "thumbprint",
    "thumbprint_of",
    "write_private_key",
]

_RSA_BITS = 2048


def generate(algorithm: str) -> bytes:
    """A new key for `algorithm`: a PKCS #8 PEM, or for HS algorithms a line of random text.

    Raises:
        InvalidKey: no such algorithm.
    """
    spec = spec_of(algorithm)
    if spec.family == "oct":
        return secrets.token_urlsafe(spec.hash_bits // 8).encode("ascii") + b"\n"
    return _new(spec).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _new(spec: Spec) -> PrivateKey:
    if spec.family == "RSA":
        return rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS)
    if spec.family == "OKP":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(EC_CURVES[str(spec.curve)])


def thumbprint(private: bytes, algorithm: str) -> str:
    """The RFC 7638 thumbprint of a signing key, as its public key would have it.

    Args:
        private: the bytes of the key file.
        algorithm: what the key is for.

    Raises:
        InvalidKey: the key is refused.
    """
    return thumbprint_of(load_signing_key(private, spec_of(algorithm)))


def thumbprint_of(key: SigningKey | VerificationKey) -> str:
    """The RFC 7638 thumbprint of a loaded key."""
    if isinstance(key.material, bytes):
        return jwk_thumbprint({"kty": "oct", "k": encode_base64url(key.material)})
    public = key.public() if isinstance(key, SigningKey) else key.material
    return jwk_thumbprint(public_jwk(public))


def public_jwks(private: bytes, algorithm: str, key_id: str = "") -> dict[str, Any]:
    """The JWKS that lets others verify what a signing key signs.

    Args:
        private: the bytes of the key file.
        algorithm: what the key is for.
        key_id: its `kid`; empty: the thumbprint.

    Raises:
        InvalidKey: the key is refused, or is a shared secret, which is never published.
    """
    public = _public(private, algorithm)
    members = public_jwk(public)
    kid = key_id or jwk_thumbprint(members)
    return {"keys": [{**members, "kid": kid, "use": "sig", "alg": algorithm}]}


def public_pem(private: bytes, algorithm: str) -> bytes:
    """The PEM public key of a signing key, for `verification_key_files`.

    Raises:
        InvalidKey: the key is refused, or is a shared secret, which has no public part.
    """
    return _public(private, algorithm).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def read_public_keys(path: Path, algorithm: str) -> list[VerificationKey]:
    """The verification keys in a file: PEM public keys, or the one secret of an HS algorithm.

    Raises:
        InvalidKey: the file or a key in it is refused; a secret that others can read, too.
    """
    spec = spec_of(algorithm)
    data = read_key_file(path, private=spec.family == "oct")
    text = data.decode("utf-8", "surrogateescape")
    return keys_from_text(text, spec, f"Key file {path}")


def _public(private: bytes, algorithm: str) -> PublicKey:
    return load_signing_key(private, spec_of(algorithm)).public()
