"""A proxy that cuts each of its connections at a random byte, for tests of client libraries.

In a test: `with cutting(server_url, seed=1) as proxy`, and the client uses `proxy.url`. As a
process: `python -m tests.clients.cutting_proxy URL [--seed N]` prints `{"url": ...}`, cuts until
its stdin ends, and then prints the counts of `CuttingProxy.counts`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from urllib.parse import urlsplit

from tests.kit.conditions import PATIENCE

__all__ = ["CuttingProxy", "cutting"]

RESPONSE_BYTES = 32_768
"""A connection is cut within its first bytes from the server, at a byte whose logarithm is uniform:
half of the cuts are in the first 180 bytes, and longer responses pass often enough."""

_REQUEST_BYTES = 600
_REQUEST_SHARE = 0.2
"""The share of connections that are cut in the bytes of the client, which the server may have."""

_RESET = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Forwards connections to a server, and cuts each one at a byte that `seed` chooses.

    A cut resets the connection, or closes it as after a complete response. A connection that its
    client closes earlier is not cut.

    Attributes:
        url: the URL of the proxy.
        counts: numbers of `connections`, `cut_requests` (at a byte of the client) and
            `cut_responses`.
    """

    def __init__(self, target: str, seed: int, response_bytes: int = RESPONSE_BYTES) -> None:
        self._target = urlsplit(target)
        self._bytes = response_bytes
        self._random = random.Random(seed)
        self._links = set[asyncio.Task[None]]()
        self.url = ""
        self.counts = {"connections": 0, "cut_requests": 0, "cut_responses": 0}

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until a side ends it, or its byte is reached."""
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        self.counts["connections"] += 1
        in_request = self._random.random() < _REQUEST_SHARE
        request_bytes = self._random.randrange(_REQUEST_BYTES)
        response_bytes = int(self._bytes ** self._random.uniform(0, 1))
        is_reset = self._random.random() < 0.5
        try:
            upstream = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            writer.transport.abort()
            self._links.discard(link)
            return
        from_server, to_server = upstream
        there = _forward(reader, to_server, request_bytes if in_request else None)
        back = _forward(from_server, writer, None if in_request else response_bytes)
        ways = [asyncio.create_task(there), asyncio.create_task(back)]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            cuts = [way.done() and way.result() for way in ways]
            is_reset = is_reset and any(cuts)
            for name, is_cut in zip(("cut_requests", "cut_responses"), cuts, strict=True):
                self.counts[name] += is_cut
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            for end in (writer, to_server):
                if is_reset:
                    end.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, _RESET
                    )
                end.close()
            self._links.discard(link)

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Listen at a free port of 127.0.0.1 within the block."""
        server = await asyncio.start_server(self._take, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()
            for link in self._links:
                link.cancel()
            if self._links:
                await asyncio.wait(self._links)


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None
) -> bool:
    """Forward bytes until they end, False, or the first `limit` bytes, True."""
    left = limit
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            if left is not None:
                data = data[:left]
                left -= len(data)
            writer.write(data)
            await writer.drain()
            if left == 0:
                return True
    return False


@contextlib.contextmanager
def cutting(
    target: str, *, seed: int, response_bytes: int = RESPONSE_BYTES
) -> Iterator[CuttingProxy]:
    """Run a proxy in a thread within the block.

    Args:
        target: the URL of the server, without a path.
        response_bytes: the most bytes of the server that pass over one connection.
    """
    loop = asyncio.new_event_loop()
    proxy = CuttingProxy(target, seed, response_bytes)
    ended = asyncio.Event()
    listening = Future[None]()

    async def serve() -> None:
        async with proxy.serve():
            listening.set_result(None)
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        listening.result(PATIENCE)
        yield proxy
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", metavar="URL")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with cutting(options.target, seed=options.seed) as proxy:
        print(json.dumps({"url": proxy.url}), flush=True)
        sys.stdin.read()
    print(json.dumps(proxy.counts), flush=True)


if __name__ == "__main__":
    main()
