"""The metrics address: a small ASGI application at `/metrics`.

It needs no token and serves nothing else. It runs on the HTTP transport of the server, which
bounds the size and time of each request.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from starlette.types import Receive, Scope, Send

from agentctl.config.settings import Limits
from agentctl.server.answers import BytesResponse
from agentctl.server.processes.listener import METRICS_PATH
from agentctl.server.transport.server import serve_small_app

RenderMetrics = Callable[[], Awaitable[str]]
"""Function that returns the text of all metrics."""

LIMITS = Limits(header_seconds=5, header_bytes=16_384)
MAXIMUM_CONNECTIONS = 16

_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def serve_metrics(
    listener: socket.socket, render: RenderMetrics
) -> AbstractAsyncContextManager[None]:
    """Serve the metrics on a listening socket while the block lasts."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != METRICS_PATH:
            response = BytesResponse(b"not found\n", 404, _TYPE, _HEADERS)
        elif scope["method"] != "GET":
            response = BytesResponse(b"GET only\n", 405, _TYPE, {**_HEADERS, "Allow": "GET"})
        else:
            response = BytesResponse((await render()).encode(), 200, _TYPE, _HEADERS)
        await response(scope, receive, send)

    return serve_small_app(listener, app, LIMITS, MAXIMUM_CONNECTIONS)
