"""Fetch a key set over HTTP: bounded in time and size, without a redirect to another origin.

A response of another origin, or over plain HTTP, could come from anyone, and its keys would verify
tokens of anyone (docs/decisions/0139). An issuer elsewhere cannot name a URL of this machine
(SSRF); the addresses that a name resolves to are not checked.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urljoin, urlsplit

from agentctl.config.databases import is_loopback_host
from agentctl.records.strict import NotStrict, parse_object

if TYPE_CHECKING:
    import httpx2

FETCH_SECONDS = 5.0
"""Maximum time of a fetch, with discovery and redirects."""

MAXIMUM_BYTES = 1_048_576
"""Maximum size of a document."""

MAXIMUM_REDIRECTS = 3

DISCOVERY_PATH = "/.well-known/openid-configuration"
"""Path of the configuration of an issuer (OpenID Connect Discovery 1.0, 4)."""

FetchErrorCode = Literal[
    "unreachable", "timeout", "tls", "status", "redirect", "too_large", "not_json",
    "issuer_mismatch", "insecure_url", "invalid_keys", "internal",
]  # fmt: skip


class FetchError(Exception):
    """A failed fetch.

    Args:
        code: the class of the failure.
        detail: the failure in a sentence, without content of the response.
    """

    def __init__(self, code: FetchErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def is_allowed_url(url: str, issuer: str = "") -> bool:
    """Return True for https, and for http to this machine.

    Args:
        issuer: the issuer that names the URL; empty for a URL of the configuration. An issuer
            elsewhere must not choose a request to this machine, not even with https.
    """
    parts = urlsplit(url)
    if parts.username is not None or not parts.hostname:
        return False
    is_here = is_loopback_host(parts.hostname)
    if is_here and issuer and not is_loopback_host(urlsplit(issuer).hostname or ""):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_here)


async def fetch_key_set(url: str, issuer: str = "") -> dict[str, Any]:
    """Return a parsed key set, whose keys are not checked.

    Args:
        url: the URL of the key set; empty to discover it.
        issuer: the issuer whose configuration names the key set, if `url` is empty.

    Raises:
        FetchError: the key set cannot be fetched.
    """
    async with _open_client() as client:
        return await _fetch(client, url or await _discover(client, issuer))


async def fetch_configuration(issuer: str) -> dict[str, Any]:
    """Return the configuration of an issuer (OpenID Connect Discovery 1.0, 4).

    Raises:
        FetchError: it cannot be fetched, or is of another issuer.
    """
    async with _open_client() as client:
        return await _fetch_configuration(client, issuer)


async def post_form(url: str, fields: Mapping[str, str]) -> dict[str, Any]:
    """Send a form; return the object of the response.

    Raises:
        FetchError: there is no response with an object and the status 200.
    """
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    async with (
        _open_client() as client,
        client.stream("POST", url, data=dict(fields), headers=headers) as response,
    ):
        return await _read_object(response)


@asynccontextmanager
async def _open_client() -> AsyncIterator[httpx2.AsyncClient]:
    import httpx2

    try:
        async with (
            asyncio.timeout(FETCH_SECONDS),
            httpx2.AsyncClient(timeout=FETCH_SECONDS) as client,
        ):
            yield client
    except (TimeoutError, httpx2.TimeoutException):
        raise FetchError("timeout", f"no response within {FETCH_SECONDS:g} seconds") from None
    except httpx2.HTTPError as error:
        cause: BaseException = error
        while (earlier := cause.__cause__ or cause.__context__) is not None:
            cause = earlier
        if isinstance(cause, ssl.SSLError):
            raise FetchError("tls", "the certificate of the server is not valid") from None
        raise FetchError("unreachable", "the server cannot be reached") from None


async def _discover(client: httpx2.AsyncClient, issuer: str) -> str:
    """Return the URL of the key set of an issuer.

    Raises:
        FetchError: the configuration of the issuer cannot be fetched, names another issuer, or has
            no allowed URL.
    """
    document = await _fetch_configuration(client, issuer)
    url = document.get("jwks_uri")
    if not isinstance(url, str) or not is_allowed_url(url, issuer):
        raise FetchError(
            "insecure_url", "the issuer names no key set with https, or one on this machine"
        )
    return url


async def _fetch_configuration(client: httpx2.AsyncClient, issuer: str) -> dict[str, Any]:
    document = await _fetch(client, issuer.rstrip("/") + DISCOVERY_PATH)
    if document.get("issuer") != issuer:
        raise FetchError("issuer_mismatch", "the discovered configuration is of another issuer")
    return document


async def _fetch(client: httpx2.AsyncClient, url: str) -> dict[str, Any]:
    for _ in range(MAXIMUM_REDIRECTS + 1):
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with client.stream("GET", url, headers=headers) as response:
            if 300 <= response.status_code < 400:
                target = urljoin(url, response.headers.get("location", ""))
                if _get_origin(target) != _get_origin(url):
                    raise FetchError("redirect", "the server redirects to another origin")
                url = target
                continue
            return await _read_object(response)
    raise FetchError("redirect", f"the server redirects more than {MAXIMUM_REDIRECTS} times")


async def _read_object(response: httpx2.Response) -> dict[str, Any]:
    if response.status_code != 200:
        raise FetchError("status", f"the server responds with {response.status_code}")
    content = await _read(response)
    try:
        return parse_object(content)
    except NotStrict as failure:
        raise FetchError("not_json", f"the response {failure}") from None


async def _read(response: httpx2.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > MAXIMUM_BYTES:
            raise FetchError("too_large", f"the response has more than {MAXIMUM_BYTES} bytes")
    return bytes(content)


def _get_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    ports = {"http": 80, "https": 443}
    try:
        return parts.scheme, parts.hostname, parts.port or ports.get(parts.scheme)
    except ValueError:
        return "", None, None
