"""A server of connections in the event loop of a test, which leaves none open."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

__all__ = ["serve_connections"]

_Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serve_connections(
    handle: _Handler, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Listen at a port of 127.0.0.1 within the block; yield the port.

    A connection is closed when its handler returns. At the end of the block the handlers that are
    left are cancelled, and their connections are reset. `asyncio.Server` of Python 3.11 leaves
    them open at its end, so that the garbage collector reports them during any later test.

    Raises:
        BaseExceptionGroup: handlers failed, other than by a connection that its peer closed.
    """
    handlers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, EOFError):
                await handle(reader, writer)
        finally:
            writer.close()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers[asyncio.create_task(run(reader, writer))] = writer

    listener = await asyncio.start_server(start, "127.0.0.1", port, ssl=tls)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for task in handlers:
            task.cancel()
        ended = await asyncio.gather(*handlers, return_exceptions=True)
        for writer in handlers.values():
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    failures = [each for each in ended if isinstance(each, Exception)]
    if failures:
        raise ExceptionGroup("handlers of connections failed", failures)
