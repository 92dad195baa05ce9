"""Connections whose requests have the times at which they arrived, as the kernel has noted them.

A request on the loopback interface arrives when it is sent. So its time does not depend on when the
process that reads it gets the processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

SO_TIMESTAMPNS = 35
"""The option of a socket whose bytes get times (socket(7)), for which Python has no name."""

READ_BYTES = 262_144

_TIME = struct.Struct("qq")
"""Seconds and nanoseconds of the time of day."""


class Request(NamedTuple):
    """A request of HTTP/1.1."""

    method: str
    target: str
    body: bytes

    arrived_at: float
    """Seconds on the monotonic clock of the machine.

    The time of the last of the bytes that had arrived when the first ones were read. Only Linux
    notes it; elsewhere it is the time of reading.
    """


class TimedConnection:
    """A connection.

    Args:
        connection: was accepted by the socket of `open_listener`.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._arrived_at = 0.0

    async def read_request(self) -> Request | None:
        """Return the next request; None at the end of the connection.

        Its client sends no other one before the answer.
        """
        data = await self.receive()
        arrived_at = self._arrived_at
        while data:
            head, end, body = data.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            if end and len(body) >= (int(length[1]) if length else 0):
                method, target, _ = head.decode().split(" ", 2)
                return Request(method, target, body, arrived_at)

            more = await self.receive()
            if not more:
                return None
            data += more
        return None

    async def receive(self) -> bytes:
        """Wait for bytes and return them; none at the end of the connection."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                space = socket.CMSG_SPACE(_TIME.size)
                data, notes, _, _ = self._socket.recvmsg(READ_BYTES, space)
            except BlockingIOError:
                readable = loop.create_future()
                loop.add_reader(self._socket, readable.set_result, None)
                try:
                    await readable
                finally:
                    loop.remove_reader(self._socket)
                continue

            self._arrived_at = time.monotonic()
            for level, kind, value in notes:
                if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                    seconds, nanoseconds = _TIME.unpack(value)
                    self._arrived_at += seconds + nanoseconds / 1e9 - time.time()
            return data

    async def answer(self, body: bytes) -> None:
        """Answer the last request with events of a stream."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        await asyncio.get_running_loop().sock_sendall(self._socket, head + length + body)


def open_listener() -> socket.socket:
    """Open a socket on a free port; the connections that it accepts have times."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1_000)
    listener.setblocking(False)
    if sys.platform == "linux":
        listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return listener


async def serve(handle: Callable[[TimedConnection], Awaitable[None]]) -> None:
    """Print a port, and handle the connections to it until the process ends."""
    loop = asyncio.get_running_loop()
    tasks = set[asyncio.Task[None]]()
    with open_listener() as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = await loop.sock_accept(listener)
            task = asyncio.create_task(_handle(connection, handle))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def _handle(
    connection: socket.socket, handle: Callable[[TimedConnection], Awaitable[None]]
) -> None:
    # A process that is killed resets its connections.
    with connection, contextlib.suppress(ConnectionError):
        await handle(TimedConnection(connection))
