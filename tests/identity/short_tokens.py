"""A server that accepts the tokens of a certified provider, which live for some seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.identity.provider import AUDIENCE, TRUST, Office, list_clients, run_identity_provider
from tests.kit.deployment import create_deployment
from tests.kit.ports import find_free_port
from tests.kit.process import start_server

__all__ = ["SECONDS", "serve_short_tokens"]

SECONDS = 10
"""Life of an access token. One that a busy machine receives after its end is refused for good."""

USERS = {"ada": {"scopes": ["agents:read", "sessions:read"], "name": "Ada L."}}

EXTRA = """
[console]
oidc_issuer = "{issuer}"
oidc_client_id = "console"
oidc_cli_client_id = "agentctl"
oidc_scopes = ["sessions:read"]
"""


@contextlib.contextmanager
def serve_short_tokens(folder: Path, model_url: str) -> Iterator[Office]:
    """Start a provider and a server until the end of the block."""
    port = find_free_port()
    clients = list_clients(f"http://127.0.0.1:{port}/console")
    with run_identity_provider(clients, users=USERS, seconds=SECONDS) as issuer:
        deployment = create_deployment(folder, model_url, extra=EXTRA.format(issuer=issuer))
        own = 'verification_key_files = ["keys/signing.pub.pem"]\n'
        trust = TRUST.format(issuer=issuer, audience=AUDIENCE)
        deployment.path.write_text(deployment.path.read_text().replace(own, trust))
        options = ("--config", str(deployment.path), "--port", str(port))
        with start_server(*options, log=folder / "server.log") as served:
            yield Office(served.url, issuer)
