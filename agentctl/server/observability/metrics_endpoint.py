"""The metrics address: a small ASGI application at `/metrics`.

It needs no token and serves nothing else. It runs on the HTTP transport of the server, which
bounds the size and time of each request. On loopback it refuses the pages of web sites; other
machines may call another address by any name.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from starlette.types import Receive, Scope, Send

from agentctl.config.databases import is_loopback_host
from agentctl.config.settings import Limits
from agentctl.server.answers import BytesResponse
from agentctl.server.origin_guard import OriginGuard
from agentctl.server.processes.listener import METRICS_PATH
from agentctl.server.transport.server import serve_small_app

RenderMetrics = Callable[[], Awaitable[str]]
"""Function that returns the text of all metrics."""

LIMITS = Limits(header_seconds=5, header_bytes=16_384)
MAXIMUM_CONNECTIONS = 16

_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_REFUSAL = b"only programs on this machine may call, by a loopback name or address\n"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def serve_metrics(
    listener: socket.socket, render: RenderMetrics
) -> AbstractAsyncContextManager[None]:
    """Serve the metrics on a listening socket while the block lasts."""
    address: str = listener.getsockname()[0]
    guard = OriginGuard(address) if is_loopback_host(address) else None

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if guard is not None and not guard.accepts(scope):
            response = BytesResponse(_REFUSAL, 403, _TYPE, _HEADERS)
        elif scope["path"] != METRICS_PATH:
            response = BytesResponse(b"not found\n", 404, _TYPE, _HEADERS)
        elif scope["method"] != "GET":
            response = BytesResponse(b"GET only\n", 405, _TYPE, {**_HEADERS, "Allow": "GET"})
        else:
            response = BytesResponse((await render()).encode(), 200, _TYPE, _HEADERS)
        await response(scope, receive, send)

    return serve_small_app(listener, app, LIMITS, MAXIMUM_CONNECTIONS)
