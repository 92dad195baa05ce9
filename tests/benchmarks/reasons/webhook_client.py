"""The client of webhooks next to one of httpx2.

`python -m tests.benchmarks.reasons.webhook_client` prints, for each, the CPU microseconds of a
delivery, the CPU milliseconds of a receiver that responds with 65,000 chunks of one byte, and how
many of ten deliveries reach this machine under a name that must not. Medians of rounds in turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median

import httpx2

from agentctl.config.webhooks import Webhook
from agentctl.webhooks.attempts import Receiver
from agentctl.webhooks.signing import Signer

ROUNDS = 7
DELIVERIES = 300
HEAD = b"HTTP/1.1 200 OK\r\n"
SHORT = HEAD + b"Content-Length: 2\r\n\r\nok"
CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 65_000 + b"0\r\n\r\n"
BODY = b"{}"

Send = Callable[[], Awaitable[object]]


class Peer:
    """A receiver on this machine that counts its requests."""

    def __init__(self) -> None:
        self.response = SHORT
        self.requests = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(len(BODY))
                self.requests += 1
                writer.write(self.response)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


def build_receiver(url: str, *, allow_private: bool) -> Receiver:
    webhook = Webhook("w", url, ("run.failed",), allow_private=allow_private)
    return Receiver(webhook, Signer([b"x" * 24]))


async def measure(send: Send, count: int) -> float:
    """Return the CPU microseconds of a delivery, with those of the receiver."""
    start = time.process_time()
    for _ in range(count):
        await send()
    return (time.process_time() - start) * 1e6 / count


async def main() -> None:
    """Print a line for each comparison."""
    peer = Peer()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    own, guarded = (build_receiver(url, allow_private=allowed) for allowed in (True, False))
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
        sides: dict[str, Send] = {
            "own": lambda: own.send("event", BODY),
            "httpx2": lambda: client.post(url, content=BODY),
        }
        for name, response, count in (("a delivery", SHORT, DELIVERIES), ("chunks", CHUNKS, 1)):
            peer.response = response
            rounds = [
                [await measure(send, count) for send in sides.values()] for _ in range(ROUNDS)
            ]
            ours, theirs = (median(values) for values in zip(*rounds, strict=True))
            print(f"{name}: own {ours:,.0f} us, httpx2 {theirs:,.0f} us, {ours / theirs:.2f}")
        peer.response = SHORT
        for name, send in (
            ("own", lambda: guarded.send("event", BODY)),
            ("httpx2", sides["httpx2"]),
        ):
            before = peer.requests
            for _ in range(10):
                await send()
            print(f"{name}: {peer.requests - before} of 10 requests reach a loopback address")
    await own.close()
    await guarded.close()
    server.close()
    while peer.open:
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main())
