"""Sign-in at an OIDC provider: the authorization code flow of a public client, with PKCE.

A page starts it and receives its result (OpenID Connect Core 1.0, 3.1; RFC 7636; RFC 9207). The
server asks the provider, so that the page connects to no other host. The secrets of one sign-in
(state, nonce, code verifier) are those of the page, and the server stores nothing. The nonce is
compared in constant time.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import jwt

from agentctl.auth.keys.remote import FetchError, fetch_configuration, is_allowed_url, post_form
from agentctl.errors import BadRequest, TooManyRequests, Unavailable

if TYPE_CHECKING:
    from agentctl.config.settings import Console

CONFIGURATION_SECONDS = 600.0
"""Time for which the configuration of the provider is used."""

MAXIMUM_REQUESTS = 8
"""Requests to the provider at a time, in one process."""

_SECRET_BYTES = 32


class SignInStart(NamedTuple):
    """A sign-in that begins: the URL to open, and the secrets that the page keeps until its end."""

    url: str
    state: str
    nonce: str
    code_verifier: str


class SignInEnd(NamedTuple):
    """The response of the provider, with the secrets of the page.

    Attributes:
        issuer: `iss` of the response (RFC 9207); empty without it.
        redirect_uri: the URL of the page, as at the start.
    """

    code: str
    code_verifier: str
    nonce: str
    redirect_uri: str
    issuer: str = ""


class OidcClient:
    """The client of one provider."""

    def __init__(self, settings: Console) -> None:
        self._settings = settings
        self._configuration: dict[str, Any] = {}
        self._read_at = 0.0
        self._requests = 0

    async def start(self, redirect_uri: str) -> SignInStart:
        """Return the URL at which the user signs in.

        Raises:
            TooManyRequests: too many requests to the provider are under way.
            Unavailable: the configuration of the provider cannot be read.
        """
        configuration = await self._read_configuration()
        state, nonce, verifier = (secrets.token_urlsafe(_SECRET_BYTES) for _ in range(3))
        digest = hashlib.sha256(verifier.encode("ascii")).digest()
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(dict.fromkeys(("openid", *self._settings.oidc_scopes))),
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).decode("ascii").rstrip("="),
            "code_challenge_method": "S256",
        }
        endpoint = configuration["authorization_endpoint"]
        mark = "&" if urlsplit(endpoint).query else "?"
        return SignInStart(f"{endpoint}{mark}{urlencode(query)}", state, nonce, verifier)

    async def finish(self, end: SignInEnd) -> str:
        """Exchange the code; return the token for this server, which is not verified yet.

        Raises:
            BadRequest: the provider refuses the code, or its response is not for this sign-in.
            TooManyRequests: too many requests to the provider are under way.
            Unavailable: the provider does not respond.
        """
        issuer = self._settings.oidc_issuer
        if end.issuer not in ("", issuer):
            raise BadRequest("The response is of another provider")
        configuration = await self._read_configuration()
        fields = {
            "grant_type": "authorization_code",
            "client_id": self._settings.oidc_client_id,
            "code": end.code,
            "code_verifier": end.code_verifier,
            "redirect_uri": end.redirect_uri,
        }
        try:
            tokens = await self._request(post_form(configuration["token_endpoint"], fields))
        except FetchError as failure:
            if failure.code != "status":
                raise _unavailable(failure) from None
            raise BadRequest(
                "The provider refused the sign-in", cause=failure.detail, hint="sign in again"
            ) from None
        self._check_id_token(tokens.get("id_token"), end.nonce)
        token = tokens.get(self._settings.oidc_token)
        if not isinstance(token, str) or not token.isascii():
            raise BadRequest(f"The provider returned no {self._settings.oidc_token}")
        return token

    def _check_id_token(self, token: object, nonce: str) -> None:
        """Check that the ID token is for this client and this sign-in.

        Its signature is not checked: it comes from the token endpoint of the provider itself
        (OpenID Connect Core 1.0, 3.1.3.7, 6).
        """
        options: Any = {
            "verify_signature": False,
            **dict.fromkeys(("verify_exp", "verify_aud", "verify_iss"), True),
            "require": ["iss", "aud", "exp", "nonce"],
        }
        client, issuer = self._settings.oidc_client_id, self._settings.oidc_issuer
        try:
            claims = jwt.decode(str(token), audience=client, issuer=issuer, options=options)
            is_valid = secrets.compare_digest(str(claims["nonce"]).encode(), nonce.encode())
        except (jwt.PyJWTError, ValueError, RecursionError):
            is_valid = False
        if not is_valid:
            raise BadRequest("The ID token of the provider is not for this sign-in")

    async def _read_configuration(self) -> dict[str, Any]:
        if self._configuration and time.monotonic() - self._read_at < CONFIGURATION_SECONDS:
            return self._configuration
        try:
            found = await self._request(fetch_configuration(self._settings.oidc_issuer))
        except FetchError as failure:
            raise _unavailable(failure) from None
        for name in ("authorization_endpoint", "token_endpoint"):
            url = found.get(name)
            if not isinstance(url, str) or not is_allowed_url(url, self._settings.oidc_issuer):
                raise Unavailable(
                    f"The provider names no {name} with https, or one on this machine"
                )
        self._configuration, self._read_at = found, time.monotonic()
        return found

    async def _request(self, work: Any) -> dict[str, Any]:
        if self._requests >= MAXIMUM_REQUESTS:
            work.close()
            raise TooManyRequests("Too many sign-ins are under way", hint="try again in a moment")
        self._requests += 1
        try:
            result: dict[str, Any] = await asyncio.shield(asyncio.ensure_future(work))
            return result
        finally:
            self._requests -= 1


def _unavailable(failure: FetchError) -> Unavailable:
    return Unavailable("The provider of the sign-in is not available", cause=failure.detail)
