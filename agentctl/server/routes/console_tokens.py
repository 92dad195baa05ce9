"""The token of a page of the console, kept over a reload (docs/decisions/0057).

The token is encrypted in a cookie, and the key is in the storage of one tab. So neither a script
nor the cookie has the token alone: not another page of the host, not a server on another port, to
which browsers send the same cookies. The cookie authorizes no request. It only returns the token
to a page that has the key, and that page sends it as any other client does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os

from starlette.responses import Response

from agentctl.auth.verifier import parse_bearer
from agentctl.errors import BadRequest, NotFound
from agentctl.server.answers import BytesResponse, json_response
from agentctl.server.routing import Operation
from agentctl.server.state import Call

KEY_HEADER = "agentctl-console-key"
"""Header with the key of the tab: 32 bytes in base64url. Pages of other origins cannot send it."""

COOKIE_PREFIX = "agentctl-console-"

MAXIMUM_TOKEN_BYTES = 2_800
"""A longer token is not kept: browsers store 4,096 bytes of a cookie."""

MAXIMUM_TABS = 4
"""Cookies at a time, so that they fit into the header of a request."""

_NONCE_BYTES = 12
_KEY_BYTES = 32
_PURPOSE = b"agentctl console token"


async def keep_console_token(call: Call) -> Response:
    """Keep the token of the caller for its tab."""
    key = _read_key(call)
    maximum = call.caller.app_state.settings.limits.token_bytes
    token = parse_bearer(call.headers.get("authorization"), maximum).encode("ascii")
    # Fields are given one by one: a mapping has one Set-Cookie only.
    response = BytesResponse(b"", 204, None)
    if len(token) > MAXIMUM_TOKEN_BYTES:
        return response
    name = _cookie_name(key)
    others = [other for other in _read_cookies(call) if other != name]
    for other in others[: max(0, len(others) - MAXIMUM_TABS + 1)]:
        _set_cookie(call, response, f"{other}=; Max-Age=0")
    _set_cookie(call, response, f"{name}={_encrypt(token, key)}")
    return response


async def restore_console_token(call: Call) -> Response:
    """Return the token that is kept for a tab.

    Raises:
        NotFound: there is none, or the key is another one.
    """
    key = _read_key(call)
    token = _decrypt(_read_cookies(call).get(_cookie_name(key), ""), key)
    if token is None:
        raise NotFound("No token is kept for this page")
    return json_response({"token": token.decode("ascii")})


async def forget_console_token(call: Call) -> Response:
    """Forget the token that is kept for a tab."""
    response = BytesResponse(b"", 204, None)
    _set_cookie(call, response, f"{_cookie_name(_read_key(call))}=; Max-Age=0")
    return response


def build_operations() -> list[Operation]:
    """Return the operations, which the OpenAPI document does not contain."""
    endpoints = (keep_console_token, restore_console_token, forget_console_token)
    return [Operation(endpoint, tag="System", in_document=False) for endpoint in endpoints]


def require_page(call: Call) -> None:
    """Check that the console is served, and that no page of another origin has made a request.

    Raises:
        NotFound: the console is switched off.
        BadRequest: the browser names another origin.
    """
    if not call.caller.app_state.settings.console.enabled:
        raise NotFound("Not found")
    if call.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise BadRequest("Only the page of the console may send this request")


def _read_key(call: Call) -> bytes:
    """Return the key of the tab.

    Raises:
        BadRequest: the header is missing or malformed, or the request is of another page.
    """
    require_page(call)
    try:
        key = base64.b64decode(call.headers.get(KEY_HEADER, "") + "=", b"-_", validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise BadRequest("The request has no key of a page of the console")
    return key


def _read_cookies(call: Call) -> dict[str, str]:
    return {name: value for name, value in call.cookies.items() if name.startswith(COOKIE_PREFIX)}


def _set_cookie(call: Call, response: Response, cookie: str) -> None:
    # Without a path it is that of the request, under any prefix of a proxy.
    secure = call.url.scheme == "https" or call.headers.get("origin", "").startswith("https:")
    field = f"{cookie}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"
    response.raw_headers.append((b"set-cookie", field.encode("ascii")))


def _cookie_name(key: bytes) -> str:
    return COOKIE_PREFIX + hashlib.sha256(_PURPOSE + key).hexdigest()[:16]


def _encrypt(token: bytes, key: bytes) -> str:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    return base64.urlsafe_b64encode(nonce + AESGCM(key).encrypt(nonce, token, _PURPOSE)).decode()


def _decrypt(value: str, key: bytes) -> bytes | None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        sealed = base64.b64decode(value, b"-_", validate=True)
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _PURPOSE)
    except (InvalidTag, ValueError):
        return None
