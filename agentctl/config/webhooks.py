"""The table `[[webhooks]]`, its checks, and its secrets, which come from the environment.

Secrets and signatures have the format of Standard Webhooks 1.0.
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
    "budget.warning",
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
    """An entry of `[[webhooks]]`: an endpoint that is notified of runs, approvals and halts."""

    id: Id

    url: BaseUrl
    """Https; http only with `allow_private`."""

    events: tuple[WebhookEvent, ...]

    secret_env: SecretVariable = ""
    """The variable with the secret for HMAC signatures (`v1`)."""

    key_file: OptionalPath = None
    """The private key for ed25519 signatures (`v1a`), in place of a secret."""

    previous_secret_env: SecretVariable = ""
    """The variable with the earlier secret while it is replaced: both sign."""

    agents: tuple[Annotated[str, Reference(("agents", "teams", "workflows"))], ...] = ()
    """Ids of agents, teams and workflows whose runs are reported; empty for all."""

    content: bool = False
    """The answer of the run is part of the body."""

    allow_private: bool = False
    """The endpoint may be at a private, loopback or link-local address."""

    @property
    def origin(self) -> str:
        """Scheme, host and port of the URL, for records: its path may be a secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


def parse_secret(text: str) -> bytes:
    """Return the bytes of a secret `whsec_…`.

    Raises:
        ValueError: it is not valid. The message is the end of a sentence, without the secret.
    """
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
        variable = getattr(webhook, key)
        if not variable:
            continue

        place = f"{where}: webhooks.{webhook.id}.{key}"
        text = environ.get(variable, "")
        if not text.strip():
            raise InvalidConfiguration(f"{place}: {variable} is not set", hint=NEW_SECRET)
        try:
            secrets.append(parse_secret(text))
        except ValueError as error:
            problem = f"{place}: the value of {variable} {error}"
            raise InvalidConfiguration(problem, hint=NEW_SECRET) from None

    return secrets
