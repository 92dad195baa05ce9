"""Sign tokens and statements with a private key.

This module uses `cryptography` only: the import of PyJWT takes 80 ms and this one 25 ms
(docs/decisions/0031). The server verifies the signatures with PyJWT.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import field

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from agentctl.auth.keys.material import PublicKey, check_public_key
from agentctl.auth.keys.shared_secret import check_secret, encode_secret
from agentctl.auth.tokens.algorithms import CURVES, AlgorithmSpec
from agentctl.errors import InvalidKey
from agentctl.light_dataclass import dataclass
from agentctl.records.strict import encode_base64url

_LABEL = "The signing key"
_HASHES: dict[int, hashes.SHA256 | hashes.SHA384 | hashes.SHA512] = {
    256: hashes.SHA256(),
    384: hashes.SHA384(),
    512: hashes.SHA512(),
}
PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key of one algorithm, or the bytes of an HMAC secret."""

    spec: AlgorithmSpec
    material: PrivateKey | bytes = field(repr=False)

    def public(self) -> PublicKey:
        """Return the public key.

        Raises:
            InvalidKey: it is a shared secret, which has no public key.
        """
        if isinstance(self.material, bytes):
            raise InvalidKey(
                "A shared secret has no public key",
                hint="set an asymmetric [authorization] algorithm, such as RS256",
            )
        return self.material.public_key()


def load_signing_key(data: bytes, spec: AlgorithmSpec, label: str = _LABEL) -> SigningKey:
    """Load the key of a key file, with the same rules as for verification keys.

    Raises:
        InvalidKey: the key is encrypted, public, unreadable, weak, or of another algorithm.
    """
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
    material, spec = key.material, key.spec
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
