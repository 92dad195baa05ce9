"""`serve`: one process that listens, until a signal tells it to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import uvicorn

from agentctl.server.app import create_app, running
from agentctl.server.listener import base_url, bind
from agentctl.server.log import log_to_stderr
from agentctl.server.protocol import Protocol

if TYPE_CHECKING:
    from fastapi import FastAPI

    from agentctl.config.settings import Settings

    Guided = Callable[["Server"], AbstractContextManager[None]]

__all__ = ["Server", "serve", "serve_on"]

GRACEFUL_SECONDS = 8
"""How long open requests may take to end once the server was told to stop."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    settings: Settings,
    *,
    announce: Callable[[str], None],
    announce_stop: Callable[[int | None], None] | None = None,
) -> None:
    """Serve a configuration in this process until SIGTERM or SIGINT.

    The first signal lets runs end for up to `server.drain_seconds`, and takes no new ones; a second
    one cancels them at once. The port is taken before anything else is opened. A database that is
    not there is made.

    Args:
        settings: the configuration; port 0 takes any that is free.
        announce: is told the base URL once requests are answered.
        announce_stop: is told of the first signal, with the number of runs that are waited for.

    Raises:
        PortInUse: another program listens there.
        UsageFailed: the host is no address of this machine, or the port may not be taken.
        Unavailable: a database cannot be used.
        SchemaMismatch: a database is older or newer than this code.
        InvalidKey: the verification keys are refused, or there are none.
        InvalidConfiguration: a tool cannot be used.
    """
    log_to_stderr()
    with contextlib.closing(bind(settings.server.host, settings.server.port)) as listener:
        serve_on(
            listener,
            settings,
            started=lambda: announce(base_url(listener)),
            stopping=announce_stop,
        )


def serve_on(
    listener: socket.socket,
    settings: Settings,
    *,
    started: Callable[[], None],
    stopping: Callable[[int], None] | None = None,
    guided: Guided | None = None,
) -> None:
    """Serve on a socket that listens, until it is told to stop; see `serve`.

    Args:
        listener: where requests come from; it is closed at the end.
        settings: the configuration.
        started: is called once requests are answered.
        stopping: is told when it begins to drain, with the number of runs that are waited for.
        guided: entered, inside the event loop, before anything is opened, and left when all is
            closed: who else than a signal may stop the server.
    """
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )
    server = Server(config, app, started, stopping)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(server, app, listener, guided or _by_nobody))


async def _serve(server: Server, app: FastAPI, listener: socket.socket, guided: Guided) -> None:
    with _heard(server.stop), guided(server):
        async with running(app):
            await server.serve(sockets=[listener])


@contextlib.contextmanager
def _heard(stop: Callable[[], None]) -> Iterator[None]:
    """Have the loop call `stop` on a signal, from before anything is opened to after the close."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _by_nobody(_: Server) -> Iterator[None]:
    yield


class Server(uvicorn.Server):
    """uvicorn's server, that takes no signals of its own, says when it listens, and drains."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        started: Callable[[], None],
        stopping: Callable[[int], None] | None,
    ) -> None:
        super().__init__(config)
        self._app = app
        self._announce = started
        self._announce_stop = stopping
        self._draining: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Nothing: uvicorn would raise them again at the end, and exit with their number."""
        yield

    def stop(self) -> None:
        """Drain, then end; called again, end at once."""
        if self._draining is None:
            self.drain()
        else:
            self.end()

    def drain(self) -> None:
        """Take no new runs, wait for those under way, then end; listens and answers meanwhile."""
        if not self.started:
            self.end()
        elif self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    def end(self) -> None:
        """Cancel what is worked on, and end."""
        self.force_exit = self.started
        self.should_exit = True

    def leave(self) -> None:
        """Drain, and leave the port to others meanwhile."""
        for listening in self.servers if self.started else ():
            listening.close()
        self.drain()

    async def _drain(self) -> None:
        service = self._app.state.door.open_service
        try:
            if self._announce_stop is not None:
                # Whoever was to read it may be gone, as `tee` is after a Ctrl-C for both.
                with contextlib.suppress(OSError):
                    self._announce_stop(service.runs_under_way)
            await service.drain()
        finally:
            self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening and end what is still worked on: open streams end with their runs."""
        if self._draining is not None:
            self._draining.cancel()
        ending = asyncio.create_task(self._app.state.door.open_service.stop_runs())
        try:
            await super().shutdown(sockets)
        finally:
            await ending
