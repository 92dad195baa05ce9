"""An office: a server that accepts the tokens of an identity provider, and a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.identity.provider import AUDIENCE, TRUST, Office, list_clients, run_identity_provider
from tests.kit.browser import open_browser
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.ports import find_free_port
from tests.kit.process import start_server

USERS = {"eve": {"groups": ["visitors", "staff"]}}

ROLES = """scopes_claim = "scope"
roles_claim = "groups"

[authorization.roles]
visitors = ["agents:read"]
"""

EXTRA = """
[mcp_endpoint]
enabled = true

[console]
oidc_issuer = "{issuer}"
oidc_client_id = "console"
"""


@pytest.fixture(scope="package")
def office(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Office]:
    folder = tmp_path_factory.mktemp("office")
    port = find_free_port()
    clients = list_clients(f"http://127.0.0.1:{port}/console")
    with run_identity_provider(clients, users=USERS) as issuer:
        extra = EXTRA.format(issuer=issuer)
        deployment = create_deployment(folder, model_endpoint.base_url, extra=extra)
        own = 'verification_key_files = ["keys/signing.pub.pem"]\n'
        trust = TRUST.format(issuer=issuer, audience=AUDIENCE) + ROLES
        deployment.path.write_text(deployment.path.read_text().replace(own, trust))
        options = ("--config", str(deployment.path), "--port", str(port))
        with start_server(*options, log=folder / "server.log") as served:
            yield Office(served.url, issuer)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser. It is closed after each file: other tests of the folder run an event loop."""
    with open_browser() as opened:
        yield opened
