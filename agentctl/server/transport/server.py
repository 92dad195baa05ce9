"""uvicorn's server and connections, as the processes of agentctl start and stop them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from agentctl.server.transport.protocol import HttpProtocol, build_protocol_class
from agentctl.work.event_loop import build_loop_class

KEEP_ALIVE_SECONDS = 75
"""Time until an idle connection is closed.

Longer than the 5 seconds of httpx and of clients that use it, and the 60 seconds of most proxies. A
request on a connection that the server closes at the same time fails, and a client cannot repeat it
safely.
"""

DATE_SECONDS = 1.0
"""Interval of the updates of the header `Date`."""


class HttpServer(uvicorn.Server):
    """uvicorn's server for one application, without signal handlers.

    Subclasses override `on_listening` and `on_shutdown`.

    Args:
        app: the ASGI application, without a lifespan.
        graceful_seconds: time for open requests to end after the stop.
    """

    request_state: Mapping[str, Any] = {}
    """The `state` of each request."""

    def __init__(self, app: ASGIApp, graceful_seconds: int) -> None:
        self._protocol = build_protocol_class()
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=self._protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=graceful_seconds,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
            )
        )
        self._exit_requested = asyncio.Event()

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop]:
        """Return the class of the event loop in which the server has to run."""
        return build_loop_class(uvloop.Loop)

    def on_listening(self) -> None:
        """Run when the server accepts connections."""

    async def on_shutdown(self) -> None:
        """Run while the server waits for open requests to end."""

    def request_exit(self, *, force: bool) -> None:
        """End the server. With `force`, do not wait for open requests."""
        self.force_exit = self.force_exit or force
        self.should_exit = True
        self._exit_requested.set()

    def close_listeners(self) -> None:
        """Stop accepting connections; open connections continue."""
        if not self.started:
            return
        for server in self.servers:
            server.close()

    def stop_keeping_alive(self) -> None:
        """Have each response close its connection, so that clients open a new connection."""
        self._protocol.keeps_alive = False
        for connection in self._connections():
            connection.stop_keeping_alive()

    def awaits_first_requests(self) -> bool:
        """Return True if a connection is open on which no complete request has come yet."""
        return any(connection.awaits_first_request for connection in self._connections())

    def awaits_requests(self) -> bool:
        """Return True if a connection is open on which the first or another request may come."""
        return any(connection.awaits_request for connection in self._connections())

    def _connections(self) -> list[HttpProtocol]:
        connections = list(self.server_state.connections)
        return [connection for connection in connections if isinstance(connection, HttpProtocol)]

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone: uvicorn would raise them again at its end."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan.state.update(self.request_state)
        await super().startup(sockets)
        if not self.should_exit:
            self.on_listening()

    async def main_loop(self) -> None:
        """Set the header `Date` every second until the server has to end.

        uvicorn looks ten times a second for the end; an idle server would spend its time on that.
        """
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_SECONDS):
                    await self._exit_requested.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self.on_shutdown())
        try:
            await super().shutdown(sockets)
        finally:
            await ending


@contextlib.asynccontextmanager
async def serve_small_app(
    listener: socket.socket, app: ASGIApp, header_seconds: float, maximum_connections: int
) -> AsyncIterator[None]:
    """Serve an application next to the main one, in the running event loop, while the block lasts.

    Connections above `maximum_connections` are closed at once.
    """
    config = uvicorn.Config(app, ws="none", log_config=None, access_log=False, lifespan="off")
    config.load()
    protocol_class = build_protocol_class(header_seconds=header_seconds)
    state = ServerState()

    def accept() -> asyncio.Protocol:
        if len(state.connections) >= maximum_connections:
            return _RefusedConnection()
        return protocol_class(config=config, server_state=state, app_state={})

    server = await asyncio.get_running_loop().create_server(accept, sock=listener)
    try:
        yield
    finally:
        server.close()
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        for connection in list(state.connections):
            if isinstance(connection, HttpProtocol):
                connection.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)


class _RefusedConnection(asyncio.Protocol):
    """A connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
