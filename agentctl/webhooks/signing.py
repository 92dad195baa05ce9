"""Signatures of Standard Webhooks 1.0: `v1` (HMAC with SHA-256) and `v1a` (ed25519)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentctl.config.webhooks import SECRET_PREFIX, Webhook, read_secrets
from agentctl.errors import InvalidConfiguration

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

NEW_SECRET_BYTES = 32
"""Random bytes of a secret that `generate_secret` returns."""


@dataclass(frozen=True, slots=True)
class Signer:
    """The keys of an endpoint."""

    secrets: Sequence[bytes]
    """Secrets for HMAC. Each secret signs."""

    key: Ed25519PrivateKey | None = None
    """The private key for ed25519, or None."""

    def build_headers(self, event_id: str, seconds: int, body: bytes) -> dict[str, str]:
        """Return the headers of an attempt at a time in seconds UTC."""
        content = b".".join((event_id.encode(), str(seconds).encode(), body))
        signatures = [
            f"v1,{_encode(hmac.digest(secret, content, hashlib.sha256))}" for secret in self.secrets
        ]
        if self.key is not None:
            signatures.append(f"v1a,{_encode(self.key.sign(content))}")

        return {
            "webhook-id": event_id,
            "webhook-timestamp": str(seconds),
            "webhook-signature": " ".join(signatures),
        }

    @property
    def public_key(self) -> str | None:
        """The key that verifies `v1a`, as `whpk_…`; None with a secret."""
        if self.key is None:
            return None
        return f"whpk_{_encode(self.key.public_key().public_bytes_raw())}"


def load_signer(webhook: Webhook, where: str, environ: Mapping[str, str] = os.environ) -> Signer:
    """Return the signer of an endpoint.

    Raises:
        InvalidConfiguration: a secret or the key file is missing or not valid; names the place.
    """
    secrets = read_secrets(webhook, environ, where)
    if webhook.key_file is None:
        return Signer(secrets)

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    place = f"{where}: webhooks.{webhook.id}.key_file"
    key: object

    try:
        key = load_pem_private_key(webhook.key_file.read_bytes(), None)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise InvalidConfiguration(f"{place}: {webhook.key_file}: {reason}") from None
    except (ValueError, TypeError):
        key = None

    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidConfiguration(
            f"{place}: {webhook.key_file} has no private ed25519 key in PEM without a password",
            hint="create one with: openssl genpkey -algorithm ed25519 -out FILE",
        )

    return Signer(secrets, key)


def generate_secret() -> str:
    """Return a new secret: `whsec_` and base64 of 32 random bytes."""
    return SECRET_PREFIX + _encode(os.urandom(NEW_SECRET_BYTES))


def _encode(value: bytes) -> str:
    return base64.b64encode(value).decode()
