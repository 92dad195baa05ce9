"""The table `[[webhooks]]`, its checks, and its secrets, which come from the environment.

The format of secrets and signatures is that of Standard Webhooks 1.0.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from agentctl.config.mcp_table import BaseUrl
from agentctl.config.names import Id
from agentctl.config.types import HIDDEN, OptionalPath, Reference
from agentctl.errors import InvalidConfiguration

WebhookEvent = Literal[
    "run.completed", "run.failed", "run.cancelled", "run.paused",
    "approval.decided", "approval.expired", "halt.created", "halt.ended",
]  # fmt: skip

SecretVariable = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        description="the name of an environment variable with the secret, never the secret itself",
    ),
    HIDDEN,
]

SECRET_PREFIX = "whsec_"
SECRET_BYTES = 24, 64
"""The least and the largest number of bytes of a secret."""

NEW_SECRET = "create one with: agentctl webhooks secret"


@dataclass(frozen=True, slots=True)
class Webhook:
    """An entry of `[[webhooks]]`: an endpoint that is notified of runs, approvals and halts.

    Attributes:
        url: https; http only with `allow_private`.
        secret_env: the variable with the secret for HMAC signatures (`v1`).
        key_file: the private key for ed25519 signatures (`v1a`), in place of a secret.
        previous_secret_env: the variable with the earlier secret while it is replaced: both sign.
        agents: ids of agents, teams and workflows whose runs are reported; empty for all.
        content: the answer of the run is part of the body.
        allow_private: the endpoint may be at a private, loopback or link-local address.
    """

    id: Id
    url: BaseUrl
    events: tuple[WebhookEvent, ...]
    secret_env: SecretVariable = ""
    key_file: OptionalPath = None
    previous_secret_env: SecretVariable = ""
    agents: tuple[Annotated[str, Reference(("agents", "teams", "workflows"))], ...] = ()
    content: bool = False
    allow_private: bool = False

    @property
    def origin(self) -> str:
        """Scheme, host and port of the URL, for records: its path may be a secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


def parse_secret(text: str) -> bytes:
    """Return the bytes of a secret `whsec_…`; ValueError, without the text, if it is not valid."""
    try:
        secret = base64.b64decode(text.strip().removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be whsec_ and base64") from None
    least, most = SECRET_BYTES
    if not least <= len(secret) <= most:
        raise ValueError(f"must be base64 of {least} to {most} bytes, not {len(secret)}")
    return secret


def read_secrets(webhook: Webhook, environ: Mapping[str, str], where: str) -> list[bytes]:
    """Return the secrets of an endpoint, the current one first; none if it has a key file.

    Args:
        where: the configuration file, for messages.

    Raises:
        InvalidConfiguration: a variable is not set, or has no secret.
    """
    secrets = []
    for key in ("secret_env", "previous_secret_env"):
        if name := getattr(webhook, key):
            place = f"{where}: webhooks.{webhook.id}.{key}"
            text = environ.get(name, "")
            if not text.strip():
                raise InvalidConfiguration(f"{place}: {name} is not set", hint=NEW_SECRET)
            try:
                secrets.append(parse_secret(text))
            except ValueError as error:
                problem = f"{place}: the value of {name} {error}"
                raise InvalidConfiguration(problem, hint=NEW_SECRET) from None
    return secrets
