"""The address of its own where a server shows its metrics: plain HTTP, one path, no tokens.

A request is answered and its connection closed. There are few of them, and whoever comes there may
be slow or speak something else, so a connection has a bound on its time and on its head.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from agentctl.config.databases import split_address
from agentctl.errors import UsageError
from agentctl.server.processes.listener import base_url, bind_socket

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

__all__ = ["RenderMetrics", "open_listeners", "serve_metrics"]

RenderMetrics = Callable[[], Awaitable[str]]
"""Makes the text of all metrics."""

PATH = "/metrics"

HEAD_SECONDS = 5.0
ANSWER_SECONDS = 10.0
HEAD_BYTES = 16_384
MAXIMUM_CONNECTIONS = 16
"""Connections that are answered at the same time; more are closed unread."""

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OWN = "metrics.listen"


@contextlib.contextmanager
def open_listeners(
    settings: Settings, announce: Callable[[str], None] | None
) -> Iterator[tuple[socket.socket, socket.socket | None]]:
    """The sockets of a server: for requests, and for metrics or None where they are not wanted.

    Args:
        settings: the configuration.
        announce: is told where metrics are shown, once both are taken.

    Raises:
        UsageFailed: the package that makes metrics is missing, or a host is no address of this
            machine, or a port may not be taken.
        PortInUse: another program listens there.
    """
    with contextlib.ExitStack() as stack:
        metrics = _bind_metrics_socket(settings)
        if metrics is not None:
            stack.enter_context(metrics)
        requests = stack.enter_context(bind_socket(settings.server.host, settings.server.port))
        if metrics is not None and announce is not None:
            announce(base_url(metrics) + PATH)
        yield requests, metrics


def _bind_metrics_socket(settings: Settings) -> socket.socket | None:
    if not settings.metrics.listen:
        return None
    if find_spec("prometheus_client") is None:
        raise UsageError(
            "[metrics] needs a package that is not installed: prometheus-client",
            hint="pip install 'agentctl[metrics]', or listen = \"\" in [metrics]",
        )
    return bind_socket(*split_address(settings.metrics.listen), key=_OWN)


@contextlib.asynccontextmanager
async def serve_metrics(listener: socket.socket, render: RenderMetrics) -> AsyncIterator[None]:
    """Answer whoever asks there while the block lasts."""
    door = _Door(render)
    server = await asyncio.start_server(door.meet, sock=listener, limit=HEAD_BYTES)
    try:
        yield
    finally:
        server.close()
        await door.close()


class _Door:
    """Answers connections, so many at the same time."""

    def __init__(self, render: RenderMetrics) -> None:
        self._render = render
        self._tasks = set[asyncio.Task[None]]()

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection, and close it."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= MAXIMUM_CONNECTIONS:
            writer.close()
            return
        self._tasks.add(task)
        try:
            await self._answer(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # gone, or too slow, or no HTTP
        finally:
            self._tasks.discard(task)
            writer.close()

    async def close(self) -> None:
        """Give up those that are under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        async with asyncio.timeout(ANSWER_SECONDS):
            if path != PATH.encode():
                answer = _whole("404 Not Found", "not found\n")
            elif method != b"GET":
                answer = _whole("405 Method Not Allowed", "GET only\n", "Allow: GET\r\n")
            else:
                answer = _whole("200 OK", await self._render())
            writer.write(answer)
            await writer.drain()
            writer.write_eof()
            await reader.read(HEAD_BYTES)


def _whole(status: str, body: str, more: str = "") -> bytes:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(content)}\r\n"
        f"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n{more}"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + content
