"""Generate keys, build their thumbprints, JWKS and PEM forms, and sign tokens and statements.

This module uses `cryptography` only: the import of PyJWT takes 80 ms and this one 25 ms
(decision 31). The server verifies the signatures with PyJWT.
"""

from __future__ import annotations

import hmac
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from agentctl.auth.keys.material import PublicKey, VerificationKey, check_public_key
from agentctl.auth.keys.shared_secret import check_secret, encode_secret
from agentctl.auth.tokens.algorithms import CURVES, AlgorithmSpec, get_algorithm
from agentctl.auth.tokens.jwk import EC_CURVES, jwk_thumbprint, public_jwk
from agentctl.errors import InvalidKey
from agentctl.records.strict import encode_base64url

_LABEL = "The signing key"
_HASHES: dict[int, hashes.SHA256 | hashes.SHA384 | hashes.SHA512] = {
    256: hashes.SHA256(),
    384: hashes.SHA384(),
    512: hashes.SHA512(),
}
PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey

_RSA_BITS = 2048


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key of one algorithm, or the bytes of an HMAC secret."""

    spec: AlgorithmSpec
    material: PrivateKey | bytes = field(repr=False)

    def public(self) -> PublicKey:
        """Return the public key; InvalidKey for a shared secret, which has none."""
        if isinstance(self.material, bytes):
            raise InvalidKey(
                "A shared secret has no public key",
                hint="set an asymmetric [authorization] algorithm, such as RS256",
            )
        return self.material.public_key()


def load_signing_key(data: bytes, spec: AlgorithmSpec, label: str = _LABEL) -> SigningKey:
    """Load the key of a key file by the rules of verification keys; InvalidKey if it breaks one."""
    if spec.family == "oct":
        secret = encode_secret(data.decode("utf-8", "surrogateescape"))
        check_secret(secret, spec, label)
        return SigningKey(spec, secret)

    try:
        # Skip the full check of an RSA key (36 ms): OpenSSL verifies each RSA signature it makes.
        key = serialization.load_pem_private_key(
            data, password=None, unsafe_skip_rsa_key_validation=True
        )
    except TypeError:
        raise InvalidKey(f"{label} is encrypted", hint="store it without a password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidKey(f"{label} is not a readable PEM private key") from None

    check_public_key(key.public_key(), spec, label)
    assert isinstance(key, PrivateKey)
    return SigningKey(spec, key)


def build_jws(payload: bytes, key: SigningKey, typ: str, kid: str) -> str:
    """Return the compact JWS of a payload (RFC 7515 7.1)."""
    header = {"alg": key.spec.name, "kid": kid, "typ": typ}
    encoded = json.dumps(header, separators=(",", ":")).encode("ascii")
    signing_input = f"{encode_base64url(encoded)}.{encode_base64url(payload)}"
    signature = sign(signing_input.encode("ascii"), key)
    return f"{signing_input}.{encode_base64url(signature)}"


def sign(data: bytes, key: SigningKey) -> bytes:
    """Return the JWS signature of `data` (RFC 7518 3.2 to 3.5, RFC 8037 3.1)."""
    material = key.material
    spec = key.spec
    if isinstance(material, bytes):
        return hmac.digest(material, data, f"sha{spec.hash_bits}")
    if isinstance(material, Ed25519PrivateKey):
        return material.sign(data)

    hash_algorithm = _HASHES[spec.hash_bits]

    if isinstance(material, RSAPrivateKey):
        if spec.name.startswith("RS"):
            return material.sign(data, padding.PKCS1v15(), hash_algorithm)
        salt_length = hash_algorithm.digest_size
        pss = padding.PSS(padding.MGF1(hash_algorithm), salt_length=salt_length)
        return material.sign(data, pss, hash_algorithm)

    r, s = decode_dss_signature(material.sign(data, ECDSA(hash_algorithm)))
    size = CURVES[str(spec.curve)].size
    return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def generate_key(algorithm: str, *, rsa_bits: int = _RSA_BITS) -> bytes:
    """Generate a key: PKCS #8 in PEM, or for HS algorithms a line of random text.

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
    """Return the RFC 7638 thumbprint of a signing key; InvalidKey if the key is rejected."""
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
    """Encode the public key of a signing key as PEM; InvalidKey for a shared secret."""
    return key.public().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
