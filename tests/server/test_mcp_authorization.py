"""Discovery of authorization by clients of MCP (RFC 9728), and a sign-in by OAuth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from agentctl.interop.mcp.face import build_challenge, build_metadata, list_scopes
from agentctl.server import create_app
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deploy
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.oauth_provider import OAuthProvider, run_oauth_provider


@pytest.fixture(scope="module")
def provider() -> Iterator[OAuthProvider]:
    with run_oauth_provider() as running:
        yield running


@pytest.fixture(scope="module")
def trusting(deploy: Deploy, provider: OAuthProvider) -> Iterator[ThreadedServer]:
    """A server that accepts the tokens of the provider."""
    deployment = deploy("[mcp_endpoint]\nenabled = true\n")
    settings = deployment.settings
    trusted = replace(
        settings.authorization,
        algorithm="EdDSA",
        verification_key_files=(),
        issuer=provider.issuer,
        jwks_url=f"{provider.issuer}jwks",
        scopes_claim=("scope",),
    )
    app = create_app(replace(settings, authorization=trusted))
    with serve_in_thread(deployment, app) as host:
        yield host


def test_metadata_names_the_identity_provider(
    trusting: ThreadedServer, provider: OAuthProvider
) -> None:
    refused = trusting.client.post("/mcp", json={})
    assert refused.status_code == 401
    challenge = refused.headers["www-authenticate"]
    url = f"{trusting.url}/.well-known/oauth-protected-resource/mcp"
    assert f'resource_metadata="{url}"' in challenge
    scopes = ["agents:run", "teams:run", "workflows:run", "sessions:read"]
    assert f'scope="{" ".join(scopes)}"' in challenge
    for place in (url, url.removesuffix("/mcp")):
        metadata = trusting.client.get(place).json()
        assert metadata["resource"] == f"{trusting.url}/mcp"
        assert metadata["authorization_servers"] == [provider.issuer]
        assert metadata["scopes_supported"] == scopes
    other = trusting.client.get("/.well-known/oauth-authorization-server")
    assert other.status_code == 404
    assert trusting.client.post(url).status_code == 405


@pytest.mark.parametrize("claims", [(), ("scp",)], ids=["roles", "prefix"])
def test_metadata_has_the_scopes_of_the_provider(
    trusting: ThreadedServer, provider: OAuthProvider, claims: tuple[str, ...]
) -> None:
    settings = trusting.deployment.settings
    table = replace(
        settings.authorization,
        issuer=provider.issuer,
        oidc_discovery=True,
        scopes_claim=claims,
        scope_prefix="api://one/",
    )
    changed = replace(settings, authorization=table)
    scope = {"type": "http", "headers": [], "path": "/", "server": ("127.0.0.1", 1)}
    metadata = build_metadata(changed, scope, "/.well-known/oauth-protected-resource")
    challenge = build_challenge(changed, scope)
    if claims:
        assert metadata["scopes_supported"][0] == "api://one/agents:run"
        assert 'scope="api://one/agents:run api://one/teams:run' in challenge
    else:
        assert "scopes_supported" not in metadata
        assert "scope=" not in challenge


class Storage:
    """Tokens in memory; see `mcp.client.auth.TokenStorage`."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.client: Any = None

    async def get_tokens(self) -> Any:
        """Return the tokens."""
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        """Keep the tokens."""
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        """Return the registered client."""
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        """Keep the registered client."""
        self.client = client_info


async def test_client_signs_in_by_oauth(trusting: ThreadedServer, provider: OAuthProvider) -> None:
    from mcp import Client
    from mcp.client.auth import OAuthClientProvider
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

    seen: dict[str, list[str]] = {}

    async def redirect(url: str) -> None:
        async with httpx2.AsyncClient() as browser:
            answer = await browser.get(url)
        seen.update(parse_qs(urlsplit(answer.headers["location"]).query))

    async def call_back() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=seen["code"][0], state=seen["state"][0])

    metadata = {"client_name": "test", "redirect_uris": ["http://127.0.0.1:9/back"]}
    auth = OAuthClientProvider(
        f"{trusting.url}/mcp",
        OAuthClientMetadata.model_validate(metadata),
        Storage(),
        redirect,
        call_back,
    )
    async with httpx2.AsyncClient(auth=auth, timeout=PATIENCE) as http:
        transport = streamable_http_client(f"{trusting.url}/mcp", http_client=http)
        async with Client(transport) as client:
            result: Any = await client.call_tool("agent_echo", {"message": "hello"})
    assert result.content[0].text == "hello"
    assert provider.scopes[-1] == list_scopes(trusting.deployment.settings)
    assert provider.resources[-1] == f"{trusting.url}/mcp"
