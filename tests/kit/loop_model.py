"""The model endpoint in the event loop of a test, for what needs no other process.

`tests/runs`, `tests/service`, `tests/runtime` and `tests/interop` replace the fixtures
`model_endpoint` and `vendor_endpoint` by those of this module:

    from tests.kit.loop_model import model_endpoint

A test that is a coroutine, or that calls `run` of `tests.kit.clock`, serves its models itself, at a
port of 127.0.0.1: with the behaviours of `tests.kit.model_server`, but without a process, a thread
or a time of its own. A model that hangs needs no timer, and one that drips uses those of the loop.
So `pass_time` moves it, and each test sees its own requests alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from tests.kit.clock import loop_servers
from tests.kit.model import ModelEndpoint
from tests.kit.model_server import Body, Disconnected, EndpointState, ModelHandler, reset_at_close
from tests.kit.vendor_server import VendorHandler

__all__ = ["LoopEndpoint", "model_endpoint", "open_loop_endpoint", "vendor_endpoint"]

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class LoopEndpoint(ModelEndpoint):
    """An endpoint in each event loop that the test runs.

    Its methods read the state directly: a coroutine may call them, except for `wait_for_open`, for
    which it uses `wait_until`.
    """

    def __init__(self, handler: type[_Answering]) -> None:
        self._handler = handler
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._port = int(self._socket.getsockname()[1])
        self.state = EndpointState()

    @property
    def port(self) -> int:
        return self._port

    def open_calls(self) -> int:
        return self.state.open

    def read_requests(self) -> list[Body]:
        return [*self.state.requests]

    def read_headers(self) -> list[Body]:
        return [*self.state.headers]

    def forget(self) -> None:
        self.state.requests.clear()
        self.state.headers.clear()
        self.state.counts.clear()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Serve in the running event loop within the block; then reset the open connections."""
        loop = asyncio.get_running_loop()
        connections: list[_Connection] = []
        tasks: list[asyncio.Task[None]] = []

        def connect() -> _Connection:
            def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                tasks.append(asyncio.create_task(self._serve(connection, reader, writer)))

            connection = _Connection(asyncio.StreamReader(), start)
            connections.append(connection)
            return connection

        # The server closes its socket: the next loop of the test needs one, too.
        server = await loop.create_server(connect, sock=self._socket.dup())
        try:
            yield
        finally:
            # A connection that was accepted in the last step gets its transport in the next ones,
            # and would get none from a server that is closed.
            loop.remove_reader(server.sockets[0].fileno())
            await asyncio.sleep(0)
            for connection in connections:
                await connection.is_open.wait()
            server.close()

            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            for connection in connections:
                await connection.abort()
        failures = [each for each in ended if isinstance(each, Exception)]
        if failures:
            raise ExceptionGroup("the model endpoint failed", failures)

    async def _serve(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            with contextlib.suppress(OSError, EOFError):
                while await self._answer_next(connection, reader, writer):
                    await writer.drain()
        finally:
            writer.close()

    async def _answer_next(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer a request; return True if the connection stays open."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        content = await reader.readexactly(int(length[1])) if length else b""
        handler = self._handler(self.state, connection, writer, head + content)
        if handler.command == "POST":
            await handler.respond()
        else:
            handler.do_GET()
        return not handler.close_connection

    def close(self) -> None:
        """Close the port."""
        self._socket.close()


class _Connection(asyncio.StreamReaderProtocol):
    """The server's end of a connection, which notes when the client has closed its own."""

    def __init__(self, reader: asyncio.StreamReader, start: Any) -> None:
        super().__init__(reader, start)
        self.is_open = asyncio.Event()
        self.gone = asyncio.Event()
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        # The class above forgets its own reference at the end.
        self._opened = transport
        self.is_open.set()
        super().connection_made(transport)

    def eof_received(self) -> bool | None:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self._lost.set()
        super().connection_lost(exc)

    async def abort(self) -> None:
        """Reset the open connection, unless it is closed."""
        self._opened.abort()
        await self._lost.wait()


class _Output(io.RawIOBase):
    """Writes to a connection without waiting; `pause` waits until the client has read enough."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def write(self, data: Any) -> int:
        if self._writer.transport.is_closing():
            raise Disconnected
        self._writer.write(data)
        return len(data)


class _Answering(ModelHandler):
    """A handler of one request that waits in the event loop."""

    def __init__(
        self,
        state: EndpointState,
        connection: _Connection,
        writer: asyncio.StreamWriter,
        request: bytes,
    ) -> None:
        # Not that of the class above, which reads from a socket.
        self._connection = connection
        self._writer = writer
        self.server = _Served(state)  # type: ignore[assignment]
        self.client_address = ("127.0.0.1", 0)
        self.rfile = io.BufferedReader(io.BytesIO(request))  # type: ignore[type-var]
        self.wfile = _Output(writer)  # type: ignore[assignment]
        self.raw_requestline = self.rfile.readline()
        assert self.parse_request(), request

    async def pause(self, seconds: float | None) -> None:
        if seconds == 0:
            await asyncio.sleep(0)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._connection.gone.wait()
        if self._connection.gone.is_set():
            raise Disconnected
        await self._writer.drain()

    def reset_connection(self) -> None:
        reset_at_close(self._writer.get_extra_info("socket"))
        self._writer.transport.abort()


class _AnsweringVendor(_Answering, VendorHandler):
    pass


class _Served:
    """The state of an endpoint as a handler sees it."""

    def __init__(self, state: EndpointState) -> None:
        self.state = state


@contextmanager
def open_loop_endpoint(handler: type[_Answering] = _Answering) -> Iterator[LoopEndpoint]:
    """Serve models in each event loop that begins within the block (`tests.kit.clock.run`)."""
    endpoint = LoopEndpoint(handler)
    loop_servers.append(endpoint)
    try:
        yield endpoint
    finally:
        loop_servers.remove(endpoint)
        endpoint.close()


@pytest.fixture
def model_endpoint() -> Iterator[LoopEndpoint]:
    """The endpoint of one test, in its event loop."""
    with open_loop_endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def vendor_endpoint() -> Iterator[LoopEndpoint]:
    """The endpoint of one test with the interfaces of other vendors, in its event loop."""
    with open_loop_endpoint(_AnsweringVendor) as endpoint:
        yield endpoint
