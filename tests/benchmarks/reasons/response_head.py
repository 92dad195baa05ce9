"""The cost of a response whose header and body are written separately.

`python -m tests.benchmarks.reasons.response_head` prints the CPU microseconds of one request,
server and client in one process over a loopback connection, for three variants: the transport of
the server, the same with the header written separately, and uvicorn's own `send`. Each is a new
process; shown is the lowest of `BLOCKS` blocks of `REQUESTS` requests, best of `ROUNDS` rounds.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

REQUESTS = 500
BLOCKS = 40
ROUNDS = 3
SIZES = (100, 1_000, 12_000, 100_000)
VARIANTS = ("joined", "separate", "uvicorn")
REQUEST = b"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer abc\r\n\r\n"
HEADERS = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-request-id", b"019a9f2e-6c1b-7d3f-9a44-1f0c5b7e2d10"),
]
"""Header fields of a usual response."""


def select_variant(variant: str) -> None:
    """Change the transport of this process."""
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from agentctl.server.transport.connection import RequestCycle, ResponseTransport

    def write_at_once(self: Any, head: bytes) -> None:
        self._transport.write(head)

    if variant == "separate":
        ResponseTransport.hold = write_at_once  # type: ignore[method-assign]
    elif variant == "uvicorn":
        RequestCycle.send = RequestResponseCycle.send  # type: ignore[method-assign]


class Client(asyncio.Protocol):
    """Sends one request after the other; `length` is the number of bytes of a response."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._left = self._received = 0
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def start(self, done: asyncio.Future[None]) -> None:
        """Send the first of `REQUESTS` requests."""
        self._done = done
        self._left = REQUESTS
        self._transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received < self._length:
            return
        self._received = 0
        self._left -= 1
        if self._left:
            self._transport.write(REQUEST)
        elif self._done is not None:
            self._done.set_result(None)


async def measure(size: int) -> float:
    """Return the lowest CPU time of a request, in microseconds."""
    import uvicorn
    from uvicorn.server import ServerState

    from agentctl.server.transport.protocol import build_protocol_class

    async def application(scope: Any, receive: Any, send: Any) -> None:
        length = str(size).encode()
        headers = [*HEADERS, (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * size})

    protocol: Any = build_protocol_class()
    config = uvicorn.Config(application, log_config=None, access_log=False, server_header=False)
    config.load()
    state = ServerState()
    state.default_headers = [(b"date", b"Fri, 20 Nov 2026 21:00:00 GMT")]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    _, client = await loop.create_connection(lambda: Client(len(head) + size), "127.0.0.1", port)
    costs = []
    for _ in range(BLOCKS):
        done = loop.create_future()
        began = time.process_time()
        client.start(done)
        await done
        costs.append((time.process_time() - began) / REQUESTS * 1_000_000)
    server.close()
    return min(costs)


def run(variant: str, size: int) -> None:
    """Print the cost of one variant and size."""
    import uvloop

    select_variant(variant)
    print(uvloop.run(measure(size)))


def main() -> None:
    """Print the table."""
    print(f"| body | {' | '.join(VARIANTS)} |\n|{' --- |' * (len(VARIANTS) + 1)}")
    for size in SIZES:
        best = dict.fromkeys(VARIANTS, float("inf"))
        for _ in range(ROUNDS):
            for variant in VARIANTS:
                command = [sys.executable, "-m", __spec__.name, variant, str(size)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                best[variant] = min(best[variant], float(done.stdout))
        print(f"| {size:,} bytes | {' | '.join(f'{best[each]:.1f} us' for each in VARIANTS)} |")


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2])) if sys.argv[1:] else main()
