"""Sign-in at an OIDC provider: the authorization code flow of a public client, with PKCE.

A page or a command starts it and receives its result (OpenID Connect Core 1.0, 3.1; RFC 7636; RFC
9207), or shows a code that the user enters in any browser (RFC 8628). For a page the server asks
the provider, so that the page connects to no other host. The secrets of one sign-in (state, nonce,
code verifier) belong to the caller. The nonce is compared in constant time.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple, TypeGuard
from urllib.parse import urlencode, urlsplit

import jwt

from agentctl.auth.keys.remote import FetchError, fetch_configuration, is_allowed_url, post_form
from agentctl.auth.tokens.algorithms import MAXIMUM_TOKEN
from agentctl.auth.tokens.claims import LAST_SECOND
from agentctl.config.settings import Console
from agentctl.errors import BadRequest, TooManyRequests, Unavailable

CONFIGURATION_SECONDS = 600.0
"""Time for which the configuration of the provider is used."""

MAXIMUM_REQUESTS = 8
"""Maximum number of simultaneous requests to the provider, in one process."""

DEVICE_SECONDS = 1_800.0
"""Maximum time for a user to enter a code."""

MAXIMUM_NAME_LENGTH = 200
"""Maximum number of characters of the name of a user."""

EARLY_SECONDS = 60.0
"""Seconds before the end of a token from which it is renewed; a quarter of its life at most."""

_SECRET_BYTES = 32
"""256 random bits, for each of the three secrets of a sign-in."""

_NO_CODE = "The provider returned no code to enter, or no page for it"

_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"

_SLOW_DOWN_SECONDS = 5.0
"""Additional time between two polls after `slow_down` and failures (RFC 8628 3.5)."""

_CLIENT_CAUSES = {
    "invalid_client": "the provider does not accept the client ID",
    "invalid_request": "the provider does not accept the request of this client",
    "invalid_scope": "the provider does not grant these scopes",
    "unauthorized_client": "the provider does not allow this kind of sign-in to the client",
    "unsupported_grant_type": "the provider does not have this kind of sign-in",
}

_CAUSES = {
    **_CLIENT_CAUSES,
    "access_denied": "the user, or the provider, denied the request",
    "expired_token": "the code was not entered in time",
    "invalid_grant": "the sign-in has expired, was revoked, or was used already",
}
"""The causes of errors of providers (RFC 6749 4.1.2.1 and 5.2, RFC 8628 3.5)."""


class SignInStart(NamedTuple):
    """A sign-in that begins: the URL to open, and the secrets that the caller keeps to its end."""

    url: str
    state: str
    nonce: str
    code_verifier: str


class SignInEnd(NamedTuple):
    """The response of the provider, with the secrets of the caller."""

    code: str
    code_verifier: str
    nonce: str

    redirect_uri: str
    """The URL of the page, as at the start."""

    issuer: str = ""
    """`iss` of the response; empty without it.

    A provider that announces it must send it (RFC 9207 2.4).
    """


class DeviceStart(NamedTuple):
    """A sign-in with a code that the user enters at a URL (RFC 8628 3.2)."""

    device_code: str
    user_code: str
    url: str

    interval: float
    """Seconds between two polls."""

    seconds: float
    """Lifetime of the code."""


class Tokens(NamedTuple):
    """The tokens of a sign-in."""

    token: str
    """The token for the server, which is not verified."""

    refresh_token: str
    """Renews the token; empty if the provider gave none."""

    expires_at: float
    """End of the token, seconds since the epoch; 0 if it is not known."""

    renew_at: float
    """Time from which the token is renewed before it is sent; 0 if that is not known."""

    name: str
    """Name of the user in the ID token; empty without one."""


class OidcClient:
    """The client of one provider."""

    def __init__(self, settings: Console) -> None:
        self._settings = settings

        # The configuration of the provider, and the time of its read on the monotonic clock.
        self._configuration: dict[str, Any] = {}
        self._read_at = 0.0

        # The number of requests that are under way.
        self._requests = 0

    async def start(self, redirect_uri: str) -> SignInStart:
        """Return the URL at which the user signs in.

        Raises:
            TooManyRequests: too many requests to the provider are under way.
            Unavailable: the configuration of the provider cannot be read.
        """
        configuration = await self._read_configuration()
        state = secrets.token_urlsafe(_SECRET_BYTES)
        nonce = secrets.token_urlsafe(_SECRET_BYTES)
        verifier = secrets.token_urlsafe(_SECRET_BYTES)

        digest = hashlib.sha256(verifier.encode("ascii")).digest()
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": redirect_uri,
            "scope": self._scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).decode("ascii").rstrip("="),
            "code_challenge_method": "S256",
        }

        if "offline_access" in self._settings.oidc_scopes:
            # Without the prompt a provider ignores the scope (Core 1.0, 11).
            query["prompt"] = "consent"

        endpoint = configuration["authorization_endpoint"]
        mark = "&" if urlsplit(endpoint).query else "?"
        return SignInStart(f"{endpoint}{mark}{urlencode(query)}", state, nonce, verifier)

    async def finish(self, end: SignInEnd) -> Tokens:
        """Exchange the code for tokens.

        Raises:
            BadRequest: the provider refuses the code, or its response is not for this sign-in.
            TooManyRequests: too many requests to the provider are under way.
            Unavailable: the provider does not respond.
        """
        configuration = await self._read_configuration()

        # A response of another provider could bring its code here (RFC 9207 1, mix-up attack).
        must_name_issuer = (
            configuration.get("authorization_response_iss_parameter_supported") is True
        )
        is_checked = must_name_issuer or end.issuer != ""
        if is_checked and end.issuer != self._settings.oidc_issuer:
            raise BadRequest("The response is of another provider", hint="sign in again")

        fields = {
            "grant_type": "authorization_code",
            "code": end.code,
            "code_verifier": end.code_verifier,
            "redirect_uri": end.redirect_uri,
        }
        answer = await self._ask("token_endpoint", fields)
        return self._read_tokens(answer, nonce=end.nonce)

    async def start_device(self) -> DeviceStart:
        """Return the code that the user enters, and where.

        Raises:
            BadRequest: the provider does not have this sign-in, or not for this client.
            TooManyRequests, Unavailable: as in `finish`.
        """
        answer = await self._ask("device_authorization_endpoint", {"scope": self._scope})

        device_code = answer.get("device_code")
        user_code = answer.get("user_code")
        url = answer.get("verification_uri")
        if not _is_plain_text(device_code) or not _is_plain_text(user_code):
            raise Unavailable(_NO_CODE)
        if not self._is_page(url):
            raise Unavailable(_NO_CODE)

        # Without an interval it is 5 seconds (RFC 8628 3.2).
        interval = _read_number(answer.get("interval", 5), 5.0)
        seconds = _read_number(answer.get("expires_in"), 0.0)
        return DeviceStart(
            device_code=device_code,
            user_code=user_code,
            url=url,
            interval=min(max(interval, 1.0), 60.0),
            seconds=min(seconds, DEVICE_SECONDS),
        )

    async def wait_for_device(self, start: DeviceStart) -> Tokens:
        """Poll until the user has entered the code; return the tokens (RFC 8628 3.4 and 3.5).

        Raises:
            BadRequest: the user denies the request, or the code has expired.
            Unavailable: the provider does not respond until the code expires.
        """
        interval = start.interval
        until = time.monotonic() + start.seconds
        fields = {"grant_type": _DEVICE_GRANT, "device_code": start.device_code}

        while time.monotonic() + interval < until:
            await asyncio.sleep(interval)
            try:
                answer = await self._post("token_endpoint", fields)
            except FetchError as error:
                if error.oauth_error == "authorization_pending":
                    continue
                is_busy = error.oauth_error == "slow_down"
                if not is_busy and error.code not in ("timeout", "unreachable"):
                    raise _build_sign_in_error(error) from None
                interval += _SLOW_DOWN_SECONDS
            else:
                return self._read_tokens(answer)

        raise build_refusal("expired_token")

    async def refresh(self, refresh_token: str) -> Tokens:
        """Renew the tokens; their refresh token is the next one (RFC 6749 6).

        Raises:
            BadRequest: the provider refuses: the user has to sign in again.
            TooManyRequests, Unavailable: as in `finish`. The refresh token stays valid.
        """
        fields = {"grant_type": "refresh_token", "refresh_token": refresh_token}
        tokens = self._read_tokens(await self._ask("token_endpoint", fields))
        if not tokens.refresh_token:
            # Without a new one, the provider accepts the same token again.
            return tokens._replace(refresh_token=refresh_token)
        return tokens

    async def revoke(self, refresh_token: str) -> bool:
        """Revoke a refresh token (RFC 7009); return False if the provider has no endpoint for it.

        Raises:
            Unavailable: the provider does not respond, or refuses.
        """
        if "revocation_endpoint" not in await self._read_configuration():
            return False
        fields = {"token": refresh_token, "token_type_hint": "refresh_token"}
        try:
            await self._post("revocation_endpoint", fields, reads_answer=False)
        except FetchError as failure:
            raise _build_unavailable(failure) from None
        return True

    @property
    def _scope(self) -> str:
        return " ".join(dict.fromkeys(("openid", *self._settings.oidc_scopes)))

    def _is_page(self, url: object) -> TypeGuard[str]:
        return _is_plain_text(url) and is_allowed_url(url, self._settings.oidc_issuer)

    def _read_tokens(self, answer: Mapping[str, Any], *, nonce: str | None = None) -> Tokens:
        """Check the response of the token endpoint; with a nonce it must have an ID token."""
        name = ""
        id_token = answer.get("id_token")
        if nonce is not None or id_token is not None:
            claims = self._check_id_token(id_token, nonce)
            names = (claims.get(claim) for claim in ("name", "preferred_username", "email"))
            name = next((name for name in names if isinstance(name, str) and name), "")

        kind = self._settings.oidc_token
        token = answer.get(kind)
        if not _is_plain_text(token):
            raise BadRequest(f"The provider returned no {kind}", hint="sign in again")

        refresh_token = answer.get("refresh_token", "")
        if not _is_plain_text(refresh_token):
            refresh_token = ""

        expires_at = _find_end(token, answer)
        renew_at = 0.0
        if expires_at:
            lifetime = max(expires_at - time.time(), 0.0)
            renew_at = expires_at - min(EARLY_SECONDS, lifetime / 4)

        return Tokens(
            token=token,
            refresh_token=refresh_token,
            expires_at=expires_at,
            renew_at=renew_at,
            name=name[:MAXIMUM_NAME_LENGTH],
        )

    def _check_id_token(self, token: object, nonce: str | None) -> dict[str, Any]:
        """Check that the ID token is for this client and this sign-in; return its claims.

        Its signature is not checked: it comes from the token endpoint of the provider itself
        (OpenID Connect Core 1.0, 3.1.3.7, 6).
        """
        required = ["iss", "aud", "exp"]
        if nonce is not None:
            required.append("nonce")
        options: Any = {
            "verify_signature": False,
            **dict.fromkeys(("verify_exp", "verify_aud", "verify_iss"), True),
            "require": required,
        }

        client = self._settings.oidc_client_id
        issuer = self._settings.oidc_issuer

        try:
            claims = jwt.decode(str(token), audience=client, issuer=issuer, options=options)
            token_nonce = str(claims["nonce"]).encode() if nonce is not None else b""
            is_valid = secrets.compare_digest(token_nonce, (nonce or "").encode())
        except (jwt.PyJWTError, ValueError, RecursionError):
            is_valid = False

        if not is_valid:
            raise BadRequest("The ID token of the provider is not for this sign-in")
        return claims

    async def _read_configuration(self) -> dict[str, Any]:
        if self._configuration and time.monotonic() - self._read_at < CONFIGURATION_SECONDS:
            return self._configuration

        try:
            configuration = await self._request(fetch_configuration(self._settings.oidc_issuer))
        except FetchError as failure:
            raise _build_unavailable(failure) from None

        for name in ("authorization_endpoint", "token_endpoint"):
            self._find_endpoint(configuration, name)

        self._configuration = configuration
        self._read_at = time.monotonic()
        return configuration

    def _find_endpoint(self, configuration: Mapping[str, Any], name: str) -> str:
        url = configuration.get(name)
        if not isinstance(url, str) or not is_allowed_url(url, self._settings.oidc_issuer):
            raise Unavailable(f"The provider names no {name} with https, or one on this machine")
        return url

    async def _ask(self, endpoint: str, fields: dict[str, str]) -> dict[str, Any]:
        """Send a form; return the response, and raise a refusal as the error of a sign-in."""
        try:
            return await self._post(endpoint, fields)
        except FetchError as failure:
            raise _build_sign_in_error(failure) from None

    async def _post(
        self, endpoint: str, fields: dict[str, str], *, reads_answer: bool = True
    ) -> dict[str, Any]:
        """Send a form of this client to an endpoint of the provider; see `post_form`."""
        url = self._find_endpoint(await self._read_configuration(), endpoint)
        form = {"client_id": self._settings.oidc_client_id, **fields}
        return await self._request(post_form(url, form, reads_answer=reads_answer))

    async def _request(self, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Make a request to the provider; TooManyRequests if too many are under way."""
        if self._requests >= MAXIMUM_REQUESTS:
            work.close()
            raise TooManyRequests("Too many sign-ins are under way", hint="try again in a moment")

        self._requests += 1
        try:
            return await asyncio.shield(asyncio.ensure_future(work))
        finally:
            self._requests -= 1


def build_refusal(error: str) -> BadRequest:
    """Build the error of a sign-in that the provider refuses with an error code of OAuth."""
    cause = _CAUSES.get(error, "the provider gave no reason")
    is_of_client = error in _CLIENT_CAUSES
    hint = "check the client and its scopes at the provider" if is_of_client else "sign in again"
    return BadRequest("The provider refused the sign-in", cause=cause, hint=hint)


def _build_sign_in_error(failure: FetchError) -> BadRequest | Unavailable:
    """Build the error of a refusal; any other failure of the provider is temporary."""
    if failure.oauth_error in ("", "server_error", "temporarily_unavailable"):
        return _build_unavailable(failure)
    return build_refusal(failure.oauth_error)


def _build_unavailable(failure: FetchError) -> Unavailable:
    return Unavailable(
        "The provider of the sign-in is not available",
        cause=failure.detail,
        hint="check the issuer, or try again in a moment",
    )


def _is_plain_text(value: object) -> TypeGuard[str]:
    """Return True for a text of visible ASCII characters that is not longer than any token."""
    if not isinstance(value, str) or not 0 < len(value) <= MAXIMUM_TOKEN:
        return False
    return value.isascii() and value.isprintable() and " " not in value


def _read_number(value: object, default: float) -> float:
    """Return a number of seconds; the default for any other value, and out of range."""
    if isinstance(value, int | float) and 0 <= value < 2**31:
        return float(value)
    return default


def _find_end(token: str, answer: Mapping[str, Any]) -> float:
    """Return the end of a token: its own claim, else `expires_in` (RFC 6749 5.1).

    It is in seconds since the epoch; 0 if neither names one.
    """
    try:
        end = jwt.decode(token, options={"verify_signature": False}).get("exp")
    except (jwt.PyJWTError, ValueError, RecursionError):
        # An access token need not be a JWT.
        end = None
    if isinstance(end, int | float) and 0 < end <= LAST_SECOND:
        return float(end)

    seconds = _read_number(answer.get("expires_in"), 0.0)
    return time.time() + seconds if seconds else 0.0
