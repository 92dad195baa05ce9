"""An authorization server of OAuth: the routes of the package mcp, with tokens as JWT.

Clients register themselves; the only user, ada, agrees to everything at once.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.kit.conditions import PATIENCE

__all__ = ["OAuthProvider", "run_oauth_provider"]


class OAuthProvider:
    """The provider; see `mcp.server.auth.provider.OAuthAuthorizationServerProvider`.

    Attributes:
        issuer: its URL.
        scopes: the scopes that clients requested, newest last.
        resources: the resources that clients requested (RFC 8707), newest last.
    """

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.scopes: list[list[str] | None] = []
        self.resources: list[str | None] = []
        self._key = Ed25519PrivateKey.generate()
        self._clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        """Return a registered client."""
        return self._clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        """Register a client."""
        self._clients[str(client_info.client_id)] = client_info

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        """Return the redirect of the user, with a code."""
        self.scopes.append(params.scopes)
        self.resources.append(params.resource)
        code = AuthorizationCode(
            code=secrets.token_urlsafe(32),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=str(client.client_id),
            **params.model_dump(exclude={"state", "scopes"}),
        )
        self._codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        """Return a code."""
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        """Return the tokens for a code."""
        del self._codes[authorization_code.code]
        scopes = authorization_code.scopes
        token = self.sign("ada", *scopes)
        return OAuthToken(access_token=token, expires_in=3_600, scope=" ".join(scopes))

    def sign(self, subject: str, *scopes: str) -> str:
        """Return a token for an hour."""
        expires = int(time.time()) + 3_600
        claims = {"sub": subject, "iss": self.issuer, "exp": expires, "scope": " ".join(scopes)}
        return jwt.encode(claims, self._key, "EdDSA", headers={"kid": "one"})

    async def load_refresh_token(self, client: Any, refresh_token: str) -> None:
        """Return None: there are no refresh tokens."""

    async def load_access_token(self, token: str) -> AccessToken | None:
        """Return None: the routes do not read tokens."""
        return None

    async def list_keys(self, request: Request) -> JSONResponse:
        """Return the key set."""
        raw = self._key.public_key().public_bytes_raw()
        x = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        key = {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": "one", "alg": "EdDSA"}
        return JSONResponse({"keys": [key]})


@contextlib.contextmanager
def run_oauth_provider() -> Iterator[OAuthProvider]:
    """Serve a provider while the block is active."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = AnyHttpUrl(f"http://127.0.0.1:{listener.getsockname()[1]}")
        provider = OAuthProvider(str(url))
        options = ClientRegistrationOptions(enabled=True)
        served: Any = provider
        routes = create_auth_routes(served, url, client_registration_options=options)
        app = Starlette(routes=[*routes, Route("/jwks", provider.list_keys)])
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", lifespan="off"))
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()
