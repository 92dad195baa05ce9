"""The console: a web page at `/console`, and the files that it loads.

The files are in `agentctl/server/console` and are sent unchanged; there is no build. Their URLs
contain a hash of all of them, so that a browser keeps them, and a page never mixes two versions.
All URLs are relative, so the page works alone, under a `root_path` and mounted
(docs/decisions/0056).
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.responses import Response

from agentctl.errors import NotFound
from agentctl.server.answers import BytesResponse
from agentctl.server.openapi.pages import content_security_policy
from agentctl.server.routing import Operation
from agentctl.server.state import Call

_CONTENT_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".mjs": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_FOLDERS = ("app", "pages", "vendor")
_PLACE = b"{assets}"
_ISSUER = b"{issuer}"

_PAGE_HEADERS = {
    **content_security_policy(
        require_trusted_types_for="'script'", trusted_types="'none'", img_src="'self'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_ASSET_HEADERS = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "Cross-Origin-Resource-Policy": "same-origin",
}


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
    _require_console(call)
    issuer = call.caller.app_state.settings.console.oidc_issuer
    page = _load_console().page.replace(_ISSUER, escape(urlsplit(issuer).netloc).encode())
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
    if not re.search(
        r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", call.headers.get("accept-encoding", "")
    ):
        return BytesResponse(plain, 200, content_type, {**headers, "Vary": "Accept-Encoding"})
    body = gzip.compress(plain, mtime=0) if compressed is None else compressed
    fields = {**headers, "Vary": "Accept-Encoding", "Content-Encoding": "gzip"}
    return BytesResponse(body, 200, content_type, fields)


@functools.cache
def _load_console() -> _Console:
    root = files("agentctl.server") / "console"
    assets = dict[tuple[str, str], _Asset]()
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for file in sorted((root / folder).iterdir(), key=lambda file: file.name):
            content_type = _CONTENT_TYPES.get("." + file.name.rpartition(".")[2])
            if content_type is not None:
                plain = file.read_bytes()
                assets[folder, file.name] = _Asset(
                    plain, gzip.compress(plain, mtime=0), content_type
                )
                digest.update(f"{folder}/{file.name} {len(plain)}\n".encode() + plain)
    version = digest.hexdigest()[:16]
    page = (root / "index.html").read_bytes()
    return _Console(page.replace(_PLACE, f"console/assets/{version}".encode()), assets, version)


def build_operations() -> list[Operation]:
    """Return the operations of the console, which the OpenAPI document does not contain."""
    endpoints = (get_console, get_console_asset)
    return [Operation(endpoint, tag="System", in_document=False) for endpoint in endpoints]
