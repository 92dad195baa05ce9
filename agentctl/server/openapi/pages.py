"""The documentation pages `/docs` and `/redoc`, their files, and `/openapi.json`.

The pages load nothing from another host, and a content security policy enforces this. Their URLs
are relative, so they work alone, under a `root_path` and mounted.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import re
import secrets
from importlib.resources import files
from importlib.resources.abc import Traversable

import orjson
from fastapi.openapi.docs import get_swagger_ui_oauth2_redirect_html
from starlette.responses import Response

from agentctl.errors import NotFound
from agentctl.server.answers import BytesResponse, Call
from agentctl.server.routing import Operation

_HTML = b"text/html; charset=utf-8"
_SCRIPT = b"text/javascript; charset=utf-8"
_STYLE = b"text/css; charset=utf-8"

_REDOC_LOGO = b"https://cdn.redoc.ly/redoc/logo-mini.svg"
_NO_IMAGE = b"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg'/%3E"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>agentctl HTTP API</title>
<link rel="icon" type="image/png" href="docs/assets/favicon.png">
<link rel="stylesheet" href="docs/assets/page.css">
{styles}
</head>
<body>
<div id="page"></div>
<script src="docs/assets/{library}"></script>
<script src="docs/assets/{script}" nonce="{nonce}"></script>
</body>
</html>
"""


_ASSETS = {
    "swagger-ui.css": ("fastapi_offline", _STYLE),
    "swagger-ui-bundle.js": ("fastapi_offline", _SCRIPT),
    "redoc.standalone.js": ("fastapi_offline", _SCRIPT),
    "favicon.png": ("fastapi_offline", b"image/png"),
    "page.css": ("agentctl.server", _STYLE),
    "docs.js": ("agentctl.server", _SCRIPT),
    "redoc.js": ("agentctl.server", _SCRIPT),
}
"""The package and the content type of each file that the pages load."""


def content_security_policy(**more: str) -> dict[str, str]:
    """Return the header field of a policy for this origin only, with `more` rules."""
    rules = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "font-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    } | {name.replace("_", "-"): value for name, value in more.items()}
    return {"Content-Security-Policy": "; ".join(f"{name} {rule}" for name, rule in rules.items())}


async def get_docs(call: Call) -> Response:
    """Show the HTTP API with Swagger UI."""
    page = _PAGE.format(
        styles='<link rel="stylesheet" href="docs/assets/swagger-ui.css">',
        library="swagger-ui-bundle.js",
        script="docs.js",
        nonce="",
    )
    return BytesResponse(page.encode(), 200, _HTML, content_security_policy())


async def get_redoc(call: Call) -> Response:
    """Show the HTTP API with ReDoc."""
    nonce = secrets.token_urlsafe(16)
    page = _PAGE.format(styles="", library="redoc.standalone.js", script="redoc.js", nonce=nonce)
    # ReDoc creates styles at run time, and its search runs in a worker made from a string.
    rules = content_security_policy(style_src=f"'self' 'nonce-{nonce}'", worker_src="blob:")
    return BytesResponse(page.encode(), 200, _HTML, rules)


async def get_docs_asset(call: Call, name: str) -> Response:
    """Return a file of the pages, from a fixed list."""
    if name not in _ASSETS:
        raise NotFound("Not found")
    package, content_type = _ASSETS[name]
    headers = {"Cache-Control": "public, max-age=3600"}
    return BytesResponse(_read_asset(package, name), 200, content_type, headers)


@functools.cache
def _read_asset(package: str, name: str) -> bytes:
    file: Traversable = files(package) / "static" / name
    # ReDoc would load a logo from the host of its vendor.
    return file.read_bytes().replace(_REDOC_LOGO, _NO_IMAGE)


async def get_oauth2_redirect(call: Call) -> Response:
    """Return the page that an authorization server redirects Swagger UI to."""
    page = bytes(get_swagger_ui_oauth2_redirect_html().body)
    scripts = re.findall(rb"<script>(.*?)</script>", page, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(script).digest()) for script in scripts)
    hashes = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    return BytesResponse(page, 200, _HTML, content_security_policy(script_src=hashes))


async def get_openapi(call: Call) -> Response:
    """Return the OpenAPI document."""
    # The first call builds it.
    document = await asyncio.to_thread(call.caller.app_state.build_openapi_document)
    root_path = call.scope.get("root_path", "")
    if root_path:
        document = b'{"servers":' + orjson.dumps([{"url": root_path}]) + b"," + document[1:]
    return BytesResponse(document)


def build_operations() -> list[Operation]:
    """Return the operations of the pages, which the OpenAPI document does not contain."""
    endpoints = (get_docs, get_redoc, get_openapi, get_oauth2_redirect, get_docs_asset)
    return [Operation(endpoint, tag="System", in_document=False) for endpoint in endpoints]
