"""A forwarder in front of several servers, as a load balancer is: the first that accepts serves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlsplit


@contextlib.asynccontextmanager
async def forward(urls: Sequence[str]) -> AsyncIterator[str]:
    """Forward connections to the first of some servers that accepts them; yield the address."""
    ports = [urlsplit(url).port for url in urls]
    writers: set[asyncio.StreamWriter] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        for port in ports:
            with contextlib.suppress(OSError):
                upstream, downstream = await asyncio.open_connection("127.0.0.1", port)
                writers.add(downstream)
                tasks.add(asyncio.create_task(copy(reader, downstream)))
                tasks.add(asyncio.create_task(copy(upstream, writer)))
                return
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*tasks)
