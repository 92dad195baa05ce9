"""The metrics address: a small ASGI application at `/metrics`.

It needs no token and serves nothing else. It runs on the HTTP transport of the server, which
bounds the size and time of each request. On loopback it refuses the pages of web sites; other
machines may call another address by any name.

A supervisor publishes the metrics of all workers as one text. Each worker has a channel for this
alone. A request is `number slot`, the response `number length` followed by that many bytes; none if
the worker has failed to write its metrics. A worker that is blocked responds late or never; later
requests do not wait for it (decision 24).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from starlette.types import Receive, Scope, Send

from agentctl.records.hosts import is_loopback_host
from agentctl.server.answers import BytesResponse
from agentctl.server.origins import OriginGuard
from agentctl.server.processes.listener import METRICS_PATH
from agentctl.server.transport.server import serve_small_app

MAXIMUM_PENDING_REQUESTS = 8
"""A worker with this number of pending requests gets no further request until it responds."""

RESPONSE_TIMEOUT_SECONDS = 2.0
"""After this time the metrics are published without the metrics of the worker."""

_UP = "agentctl_worker_up"
_UP_HEAD = f"# HELP {_UP} 1 if the process reported its metrics in time.\n# TYPE {_UP} gauge\n"

_log = logging.getLogger("agentctl.server")

RenderMetrics = Callable[[], Awaitable[str]]
"""Function that returns the text of all metrics."""

HEADER_SECONDS = 5.0
"""Time to receive the headers of a request."""

MAXIMUM_CONNECTIONS = 16
"""Maximum number of open connections to the metrics address."""

_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_REFUSAL = b"only programs on this machine may call, by a loopback name or address\n"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class MetricsChannel:
    """The supervisor's end of the channel. Created by `open`, inside the event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._last_number = 0
        self._pending: dict[int, asyncio.Future[str]] = {}
        self._reading = asyncio.create_task(self._read_responses())

    @classmethod
    async def open(cls, ours: socket.socket) -> MetricsChannel:
        """Return the channel of a socket, which `close` closes."""
        return cls(*await asyncio.open_connection(sock=ours))

    async def request(self, slot: int) -> str | None:
        """Return the metrics of the worker in this slot; None if it fails or is late."""
        if self._reading.done() or len(self._pending) >= MAXIMUM_PENDING_REQUESTS:
            return None

        self._last_number += 1
        response: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._pending[self._last_number] = response
        self._writer.write(b"%d %d\n" % (self._last_number, slot))
        await asyncio.wait([response], timeout=RESPONSE_TIMEOUT_SECONDS)
        # A late response stays pending, so that a blocked worker gets no more requests.
        if not response.done() or response.cancelled():
            return None
        return response.result()

    def close(self) -> None:
        self._reading.cancel()
        self._writer.close()

    async def _read_responses(self) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                number, length = map(int, (await self._reader.readuntil()).split())
                text = (await self._reader.readexactly(length)).decode()
                pending_response = self._pending.pop(number, None)
                if pending_response is None:
                    continue
                if text:
                    pending_response.set_result(text)
                else:
                    pending_response.cancel()

        # The worker has ended.
        for response in self._pending.values():
            response.cancel()


@contextlib.asynccontextmanager
async def answer_metrics_requests(
    theirs: socket.socket, text: Callable[[int], str]
) -> AsyncIterator[None]:
    """Respond to the requests of the supervisor while the block lasts.

    Args:
        theirs: the worker's end of the channel.
        text: returns the metrics, labelled with the slot of the worker.
    """
    theirs.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=theirs.dup())

    async def respond() -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                number, slot = map(int, (await reader.readuntil()).split())
                try:
                    content = text(slot).encode()
                except Exception:
                    _log.exception("the metrics of worker %d cannot be written", slot)
                    content = b""
                writer.write(b"%d %d\n" % (number, len(content)) + content)
                await writer.drain()

    responding = asyncio.create_task(respond())
    try:
        yield
    finally:
        responding.cancel()
        await asyncio.wait([responding])
        writer.close()


async def gather_metrics(requests: Mapping[int, Callable[[int], Awaitable[str | None]]]) -> str:
    """Return the metrics of all workers by slot, with a metric for those that responded."""
    slots = sorted(requests)
    texts = await asyncio.gather(*(requests[slot](slot) for slot in slots))
    up = [
        f'{_UP}{{worker="{slot}"}} {float(text is not None)}\n'
        for slot, text in zip(slots, texts, strict=True)
    ]
    return _UP_HEAD + "".join(up) + merge_metrics([text for text in texts if text is not None])


def merge_metrics(texts: list[str]) -> str:
    """Return several texts as one text that has each metric family once."""
    families: dict[str, list[str]] = {}
    for text in texts:
        # A help text or a label may have the same words inside a line.
        for family in re.split("^# HELP ", text, flags=re.MULTILINE)[1:]:
            head, kind, samples = family.split("\n", 2)
            families.setdefault(f"# HELP {head}\n{kind}\n", []).append(samples)
    return "".join(head + "".join(samples) for head, samples in families.items())


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

    return serve_small_app(listener, app, HEADER_SECONDS, MAXIMUM_CONNECTIONS)
