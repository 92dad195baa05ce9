"""Sign-in of the official client of MCP at a certified identity provider."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from tests.identity.provider import Office, needs_provider
from tests.kit.conditions import PATIENCE
from tests.packaging.sign_in import follow_forms
from tests.server.test_mcp_authorization import Storage

pytestmark = [needs_provider]

BACK = "http://127.0.0.1:9/back"


async def test_client_registers_and_calls_with_its_scopes(office: Office) -> None:
    from mcp import Client
    from mcp.client.auth import OAuthClientProvider
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

    seen: dict[str, str] = {}

    async def sign_in(url: str) -> None:
        with httpx2.Client() as browser:
            seen.update(await asyncio.to_thread(follow_forms, browser, url, "max", BACK))

    async def call_back() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=seen["code"], state=seen["state"], iss=seen["iss"])

    place = f"{office.url}/mcp"
    metadata = {"client_name": "test", "redirect_uris": [BACK]}
    options = OAuthClientMetadata.model_validate(metadata)
    auth = OAuthClientProvider(place, options, Storage(), sign_in, call_back)
    async with httpx2.AsyncClient(auth=auth, timeout=PATIENCE) as http:
        transport = streamable_http_client(place, http_client=http)
        async with Client(transport) as client:
            result: Any = await client.call_tool("agent_echo", {"message": "hello"})
    assert result.content[0].text == "hello"
