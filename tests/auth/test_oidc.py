"""Sign-in at an OIDC provider: the endpoints that its configuration may name."""

from __future__ import annotations

import asyncio

import jwt
import pytest

from agentctl.auth.oidc import MAXIMUM_NAME_LENGTH, MAXIMUM_REQUESTS, OidcClient
from agentctl.config.settings import Console
from agentctl.errors import TooManyRequests, Unavailable
from tests.auth.key_server import serve_keys
from tests.cli.stub_provider import serve_provider


def test_provider_elsewhere_names_no_endpoint_of_this_machine() -> None:
    with serve_keys() as server:
        client = OidcClient(Console(oidc_issuer=server.url, oidc_client_id="console"))
        started = asyncio.run(client.start("https://agents.example/console"))
        assert started.url.startswith(f"{server.url}/authorize?")
        # 0.0.0.0 reaches this machine and is no loopback address: a provider with another name.
        server.issuer = server.url.replace("127.0.0.1", "0.0.0.0")
        client = OidcClient(Console(oidc_issuer=server.issuer, oidc_client_id="console"))
        with pytest.raises(Unavailable, match="names no authorization_endpoint"):
            asyncio.run(client.start("https://agents.example/console"))


def test_no_proxy_gets_requests_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serve_keys() as server:
        for issuer in (server.url, server.url.replace("127.0.0.1", "localhost")):
            server.issuer = issuer
            client = OidcClient(Console(oidc_issuer=issuer, oidc_client_id="console"))
            started = asyncio.run(client.start("https://agents.example/console"))
            assert started.url.startswith(f"{server.url}/authorize?")


def test_claims_of_tokens_are_bounded() -> None:
    key = "a key of the provider alone, 32 bytes"
    client_id = "cli"
    with serve_provider() as provider:
        identity = {"iss": provider.url, "aud": client_id, "exp": 2**40, "name": "Ada" * 100_000}
        token = jwt.encode({"exp": 2**39}, key)
        answer = {"access_token": token, "id_token": jwt.encode(identity, key)}
        provider.answers = {
            "openid-configuration": [provider.configure()],
            "token": [(200, answer)],
        }
        client = OidcClient(Console(oidc_issuer=provider.url, oidc_client_id=client_id))
        tokens = asyncio.run(client.refresh("first"))
    assert tokens.name == ("Ada" * 100_000)[:MAXIMUM_NAME_LENGTH]
    assert tokens.expires_at == 0
    assert tokens.refresh_token == "first"


async def _fill(url: str) -> BaseException | None:
    """Start one sign-in too many; return the failure of the first one that ends."""
    client = OidcClient(Console(oidc_issuer=url, oidc_client_id="console"))
    starts = [
        asyncio.ensure_future(client.start("https://agents.example/console"))
        for _ in range(MAXIMUM_REQUESTS + 1)
    ]
    done, waiting = await asyncio.wait(starts, return_when=asyncio.FIRST_COMPLETED)
    for start in waiting:
        start.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return done.pop().exception()


def test_sign_ins_at_the_same_time_are_bounded() -> None:
    with serve_keys() as server:
        server.released.clear()
        assert isinstance(asyncio.run(_fill(server.url)), TooManyRequests)
