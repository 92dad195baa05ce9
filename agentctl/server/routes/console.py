"""The web pages `/console` and `/chat`, and the files that they load.

The files are in `agentctl/server/console` and are sent unchanged; there is no build. Their URLs
contain a hash of all of them, so that a browser keeps them, and a page never mixes two versions.
All URLs are relative, so the page works alone, under a `root_path` and mounted
(decision 56).

The token of a page is kept over a reload, encrypted in a cookie, and the key is in the storage of
one tab (decision 57). So neither a script nor the cookie has the token alone: not another
page of the host, not a server on another port, to which browsers send the same cookies. The cookie
authorizes no request. It only returns the token to a page that has the key, and that page sends it
as any other client does. The refresh token of a provider is in this cookie only, which no script
reads.
"""

from __future__ import annotations

import base64
import binascii
import functools
import gzip
import hashlib
import logging
import math
import os
import re
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from importlib.resources import files
from typing import NamedTuple, NotRequired
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidTag
from starlette.responses import Response

from agentctl.auth.oidc import OidcClient, SignInEnd, Tokens
from agentctl.auth.tokens.algorithms import MAXIMUM_TOKEN
from agentctl.auth.verifier import parse_bearer
from agentctl.errors import (
    AgentctlError,
    BadRequest,
    Conflict,
    InvalidToken,
    NotFound,
    Unauthenticated,
    ValidationFailed,
)
from agentctl.interface.bodies import BodyRecord
from agentctl.records.logs import RateLimitedLog
from agentctl.server.answers import BytesResponse, Call, json_response
from agentctl.server.openapi.pages import content_security_policy
from agentctl.server.requests import RequestBody
from agentctl.server.routing import Endpoint, Operation
from agentctl.server.sign_in_links import LIFETIME_SECONDS

_CONTENT_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".mjs": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_FOLDERS = ("app", "pages", "vendor")

# What is replaced in the page.
_PLACE = b"{assets}"
_ISSUER = b"{issuer}"
_CHAT = b"{chat}"
_NAME = b"{name}"
_MAIN = b"{main}"

_PAGE_HEADERS = {
    **content_security_policy(
        require_trusted_types_for="'script'",
        trusted_types="'none'",
        img_src="'self' blob:",
        media_src="blob:",
        frame_src="blob:",
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_ASSET_HEADERS = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "Cross-Origin-Resource-Policy": "same-origin",
}

RETRY_SECONDS = 1
"""Minimum time between two renewals by a page."""

KEY_HEADER = "agentctl-console-key"
"""Header with the key of the tab: 32 bytes in base64url. Pages of other origins cannot send it."""

COOKIE_PREFIX = "agentctl-console-"
"""The start of the name of each cookie; the rest tells the tabs apart."""

MAXIMUM_TOKEN_BYTES = 2_800
"""Maximum number of compressed bytes of kept tokens: browsers store 4,096 bytes of a cookie.

A longer token is not kept; without its refresh token it may fit.
"""

MAXIMUM_TABS = 4
"""Maximum number of cookies of a browser, so that they fit into the header of a request."""

_NONCE_BYTES = 12
_KEY_BYTES = 32

_PURPOSE = b"agentctl console token"
"""Bound into the name and the encryption of a cookie, so that the key has no other use."""

_log = RateLimitedLog(logging.getLogger("agentctl.server"))

MAXIMUM_FIELD_LENGTH = 4_096
"""Maximum number of characters of each field of a body."""

_SECONDS = re.compile(r"[0-9]{1,12}")
_PAGE_URL = re.compile(r"https?://[^\s?#@]+")


class _KeptTokens(NamedTuple):
    """The content of a cookie, texts without spaces."""

    token: str

    refresh_token: str = ""
    """Empty for a token that is not renewed."""

    renew_at: str = "0"
    """Seconds since the epoch; 0 if it is not known."""


class _Asset(NamedTuple):
    """A file that the page loads, plain and compressed."""

    plain: bytes
    compressed: bytes
    content_type: bytes


class _Console(NamedTuple):
    """The page, its files by folder and name, and the version in their URLs."""

    page: bytes
    assets: Mapping[tuple[str, str], _Asset]
    version: str


async def get_console(call: Call) -> Response:
    """Show the console."""
    return _show(call, b"console", b"app/main.js")


async def get_chat(call: Call) -> Response:
    """Show the chat for the people who use the agents."""
    if not call.caller.app_state.settings.console.chat:
        raise NotFound("Not found")
    return _show(call, b"chat", b"pages/chat.js")


def _show(call: Call, name: bytes, main: bytes) -> Response:
    """Return a page by its name and its main module."""
    _require_console(call)
    settings = call.caller.app_state.settings.console
    chat = b"chat" if settings.chat else b""

    page = _load_console().page
    page = page.replace(_NAME, name)
    page = page.replace(_MAIN, main)
    page = page.replace(_CHAT, chat)
    page = page.replace(_ISSUER, escape(urlsplit(settings.oidc_issuer).netloc).encode())
    return _compressible(call, page, b"text/html; charset=utf-8", _PAGE_HEADERS)


async def get_console_asset(call: Call, version: str, folder: str, name: str) -> Response:
    """Return a file of the console, from a fixed list."""
    _require_console(call)
    console = _load_console()
    asset = console.assets.get((folder, name))
    if asset is None or version != console.version:
        raise NotFound("Not found")
    return _compressible(
        call, asset.plain, asset.content_type, _ASSET_HEADERS, compressed=asset.compressed
    )


def is_console_enabled(call: Call) -> bool:
    return call.caller.app_state.settings.console.enabled


def prefers_html(call: Call) -> bool:
    """Return True if a request is the navigation of a browser: its `Accept` names HTML."""
    ranges = call.headers.get("accept", "").lower().split(",")
    return any(item.partition(";")[0].strip() == "text/html" for item in ranges)


def redirect_to_console() -> BytesResponse:
    """Return the redirect of `/`, with a relative URL."""
    return BytesResponse(b"", 307, None, {"Location": "console", "Vary": "Accept"})


def _require_console(call: Call) -> None:
    if not is_console_enabled(call):
        raise NotFound("Not found")


def _compressible(
    call: Call,
    plain: bytes,
    content_type: bytes,
    headers: Mapping[str, str],
    *,
    compressed: bytes | None = None,
) -> BytesResponse:
    """Return a response that is compressed if the client accepts gzip.

    Args:
        compressed: the compressed content; None to compress it now.
    """
    fields = {**headers, "Vary": "Accept-Encoding"}
    # `gzip;q=0` is a refusal.
    accepts_gzip = re.search(
        r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", call.headers.get("accept-encoding", "")
    )
    if not accepts_gzip:
        return BytesResponse(plain, 200, content_type, fields)

    # Without a time, equal contents have equal bytes.
    body = gzip.compress(plain, mtime=0) if compressed is None else compressed
    return BytesResponse(body, 200, content_type, {**fields, "Content-Encoding": "gzip"})


@functools.cache
def _load_console() -> _Console:
    """Read all files of the console, once for this process."""
    root = files("agentctl.server") / "console"
    assets = dict[tuple[str, str], _Asset]()
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for file in sorted((root / folder).iterdir(), key=lambda file: file.name):
            content_type = _CONTENT_TYPES.get("." + file.name.rpartition(".")[2])
            if content_type is None:
                continue

            plain = file.read_bytes()
            compressed = gzip.compress(plain, mtime=0)
            assets[folder, file.name] = _Asset(plain, compressed, content_type)
            digest.update(f"{folder}/{file.name} {len(plain)}\n".encode() + plain)

    version = digest.hexdigest()[:16]
    page = (root / "index.html").read_bytes()
    page = page.replace(_PLACE, f"console/assets/{version}".encode())
    return _Console(page, assets, version)


async def keep_console_token(call: Call) -> Response:
    """Keep the token of the caller for its tab."""
    key = _read_key(call)
    token = parse_bearer(call.headers.get("authorization"))
    response = BytesResponse(b"", 204, None)
    _add_cookie(call, response, key, _KeptTokens(token))
    return response


async def restore_console_token(call: Call) -> Response:
    """Return the token that is kept for a tab, renewed by the provider if it is about to expire.

    Raises:
        NotFound: no token is kept, or it is encrypted with another key.
        Unauthenticated: the provider, or this server, does not accept the sign-in any more.
        TooManyRequests, Unavailable: the provider cannot be asked now.
    """
    key = _read_key(call)
    client = call.caller.app_state.oidc_client
    kept_tokens = _read_tokens(call, key)
    if client is None or not kept_tokens.refresh_token:
        return _build_response(kept_tokens)
    if time.time() < float(kept_tokens.renew_at):
        return _build_response(kept_tokens)

    try:
        tokens = await client.refresh(kept_tokens.refresh_token)
        await _check_token(call, tokens.token)
    except BadRequest as failure:
        reason = failure.cause or failure.detail
        raise Unauthenticated(f"Your sign-in has ended: {reason}") from None
    return _keep_tokens(call, key, tokens)


async def forget_console_token(call: Call) -> Response:
    """Forget the token that is kept for a tab, and revoke its refresh token at the provider."""
    key = _read_key(call)
    client = call.caller.app_state.oidc_client
    response = BytesResponse(b"", 204, None)
    _set_cookie(call, response, f"{_cookie_name(key)}=; Max-Age=0")

    # The page has signed out, also without the provider.
    with suppress(AgentctlError):
        if client is not None:
            refresh_token = _read_tokens(call, key).refresh_token
            if refresh_token:
                await client.revoke(refresh_token)
    return response


def require_page(call: Call) -> None:
    """Check that the console is served, and that no page of another origin has made a request.

    Raises:
        NotFound: the console is switched off.
        BadRequest: the browser names another origin.
    """
    _require_console(call)
    if call.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise BadRequest("Only the page of the console may send this request")


def _read_key(call: Call) -> bytes:
    """Return the key of the tab; BadRequest if the request has none."""
    require_page(call)
    try:
        # 32 bytes are 43 characters, and a page sends them without the padding.
        key = base64.b64decode(call.headers.get(KEY_HEADER, "") + "=", b"-_", validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise BadRequest("The request has no key of a page of the console")
    return key


def _read_tokens(call: Call, key: bytes) -> _KeptTokens:
    """Return the kept tokens of a tab; NotFound if there are none, or with another key."""
    content = _decrypt(_read_cookies(call).get(_cookie_name(key), ""), key)
    fields: list[str] = []
    if content is not None:
        fields = content.decode("ascii", "replace").split(" ")
    if len(fields) != len(_KeptTokens._fields) or not _SECONDS.fullmatch(fields[-1]):
        raise NotFound("No token is kept for this page")
    return _KeptTokens(*fields)


def _keep_tokens(call: Call, key: bytes, tokens: Tokens) -> Response:
    """Keep the tokens of a provider for a tab; return the response with the token."""
    kept_tokens = _KeptTokens(tokens.token, tokens.refresh_token, str(int(tokens.renew_at)))
    # A token without an end needs no renewal.
    if not tokens.renew_at or len(_compress(kept_tokens)) > MAXIMUM_TOKEN_BYTES:
        kept_tokens = _KeptTokens(tokens.token)

    response = _build_response(kept_tokens)
    _add_cookie(call, response, key, kept_tokens)
    return response


def _build_response(kept_tokens: _KeptTokens) -> BytesResponse:
    """Return the response with a token, and the seconds until it can be renewed, 0 for never."""
    renew_in = 0
    if kept_tokens.refresh_token:
        renew_in = max(RETRY_SECONDS, math.ceil(int(kept_tokens.renew_at) - time.time()))
    return json_response({"token": kept_tokens.token, "renew_in": renew_in})


def _add_cookie(call: Call, response: Response, key: bytes, kept_tokens: _KeptTokens) -> None:
    """Add the cookie of a tab to a response, unless it is too large."""
    content = _compress(kept_tokens)
    if len(content) > MAXIMUM_TOKEN_BYTES:
        return

    # Browsers send the oldest cookie first: the tabs that were opened last keep theirs.
    name = _cookie_name(key)
    other_names = [cookie_name for cookie_name in _read_cookies(call) if cookie_name != name]
    surplus = max(0, len(other_names) - MAXIMUM_TABS + 1)
    for other_name in other_names[:surplus]:
        _set_cookie(call, response, f"{other_name}=; Max-Age=0")
    _set_cookie(call, response, f"{name}={_encrypt(content, key)}")


def _compress(kept_tokens: _KeptTokens) -> bytes:
    return zlib.compress(" ".join(kept_tokens).encode("ascii"), 9)


def _read_cookies(call: Call) -> dict[str, str]:
    return {name: value for name, value in call.cookies.items() if name.startswith(COOKIE_PREFIX)}


def _set_cookie(call: Call, response: Response, cookie: str) -> None:
    # Without a path it is the path of the request, under any prefix of a proxy.
    field = f"{cookie}; HttpOnly; SameSite=Strict"
    # The origin shows TLS that a proxy has ended.
    if call.url.scheme == "https" or call.headers.get("origin", "").startswith("https:"):
        field = f"{field}; Secure"
    # Fields are given one by one: a mapping has one Set-Cookie only.
    response.raw_headers.append((b"set-cookie", field.encode("ascii")))


def _cookie_name(key: bytes) -> str:
    return COOKIE_PREFIX + hashlib.sha256(_PURPOSE + key).hexdigest()[:16]


def _encrypt(content: bytes, key: bytes) -> str:
    """Return the value of a cookie: the nonce and the content, encrypted with the key of a tab."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    sealed = AESGCM(key).encrypt(nonce, content, _PURPOSE)
    return base64.urlsafe_b64encode(nonce + sealed).decode()


def _decrypt(value: str, key: bytes) -> bytes | None:
    """Return the content of a cookie; None if it was not encrypted with this key."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        sealed = base64.b64decode(value, b"-_", validate=True)
        content = AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _PURPOSE)
        # A caller can encrypt anything with its own key: a few bytes could become many.
        return zlib.decompressobj().decompress(content, 3 * MAXIMUM_TOKEN)
    except (InvalidTag, ValueError, zlib.error):
        return None


class _LinkBody(BodyRecord):
    """The code of a link that signs in."""

    code: str


async def create_sign_in_link(call: Call) -> Response:
    """Return a code with which a page signs in once, as the caller.

    Raises:
        Conflict: the server needs no token, or has several processes: the page may reach a process
            that does not have the code.
    """
    _require_console(call)
    state = call.caller.app_state
    if not state.settings.authorization.enabled:
        raise Conflict("Authorization is off, so there is nothing to sign in to")
    if state.settings.server.workers > 1:
        raise Conflict("Sign-in links need a server with one worker process")

    token = parse_bearer(call.headers.get("authorization"))
    code = state.sign_in_links.create(token)
    return json_response({"code": code, "expires_in": LIFETIME_SECONDS})


async def use_sign_in_link(call: Call, code: str) -> Response:
    """Return the token of a link, once, and keep it for the tab that has opened the link.

    Raises:
        BadRequest: the link has expired or was used, or another origin sends its code.
    """
    key = _read_key(call)
    token = None
    if len(code) <= MAXIMUM_FIELD_LENGTH:
        token = call.caller.app_state.sign_in_links.redeem(code)
    if token is None:
        raise BadRequest("The sign-in link has expired or was used before: create another one")

    kept_tokens = _KeptTokens(token)
    response = _build_response(kept_tokens)
    _add_cookie(call, response, key, kept_tokens)
    return response


class _StartBody(BodyRecord):
    """The start of a sign-in, with the URL of the page."""

    redirect_uri: str


class _FinishBody(BodyRecord):
    """The response of the provider, and the secrets of the page."""

    code: str
    code_verifier: str
    nonce: str
    redirect_uri: str
    issuer: NotRequired[str]


async def start_console_sign_in(call: Call, redirect_uri: str) -> Response:
    """Return the URL at which the user signs in, and the secrets of the page."""
    client = _require_client(call)
    _check_fields(redirect_uri)
    started = await client.start(redirect_uri)
    return json_response(started._asdict())


async def finish_console_sign_in(
    call: Call, code: str, code_verifier: str, nonce: str, redirect_uri: str, issuer: str = ""
) -> Response:
    """Return the token of the user, if this server accepts it, and keep it for its tab.

    Raises:
        BadRequest: the provider, or this server, does not accept the sign-in.
    """
    client = _require_client(call)
    key = _read_key(call)
    _check_fields(redirect_uri, code, code_verifier, nonce, issuer)
    end = SignInEnd(code, code_verifier, nonce, redirect_uri, issuer)
    tokens = await client.finish(end)
    await _check_token(call, tokens.token)
    return _keep_tokens(call, key, tokens)


async def _check_token(call: Call, token: str) -> None:
    """Check that this server accepts a token of the provider; BadRequest if it does not."""
    verifier = call.caller.app_state.verifier
    assert verifier is not None
    try:
        parse_bearer(f"Bearer {token}")
        await verifier.identify(f"Bearer {token}")
    except InvalidToken as failure:
        _log.log("a token of the sign-in provider is not valid here: %s", failure.reason)
        raise BadRequest(
            "The provider has signed you in, but this server does not accept its token",
            hint="ask the operator: the log of the server has the reason",
        ) from None


def _check_fields(redirect_uri: str, *other_fields: str) -> None:
    """Check the bounds of the fields; ValidationFailed if one exceeds them."""
    if max(map(len, (redirect_uri, *other_fields))) > MAXIMUM_FIELD_LENGTH:
        raise ValidationFailed(f"A field is longer than {MAXIMUM_FIELD_LENGTH} characters")
    if not _PAGE_URL.fullmatch(redirect_uri):
        raise ValidationFailed("redirect_uri is not the URL of a page")


def _require_client(call: Call) -> OidcClient:
    """Return the client of the provider; NotFound if the console has no provider."""
    require_page(call)
    client = call.caller.app_state.oidc_client
    if client is None:
        raise NotFound("Not found")
    return client


def build_operations() -> list[Operation]:
    """Return the operations of the console, which the OpenAPI document does not contain."""
    bodies: dict[Endpoint, RequestBody | None] = {
        get_console: None,
        get_chat: None,
        get_console_asset: None,
        keep_console_token: None,
        restore_console_token: None,
        forget_console_token: None,
        start_console_sign_in: RequestBody(_StartBody),
        finish_console_sign_in: RequestBody(_FinishBody),
        create_sign_in_link: None,
        use_sign_in_link: RequestBody(_LinkBody),
    }
    return [
        Operation(endpoint, tag="System", body=body, in_document=False)
        for endpoint, body in bodies.items()
    ]
