"""`serve`: one process that listens, until a signal tells it to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import uvicorn

from agentctl.errors import PortInUse, Unavailable, UsageFailed
from agentctl.server.app import create_app, running
from agentctl.server.protocol import Protocol

if TYPE_CHECKING:
    from fastapi import FastAPI

    from agentctl.config.settings import Settings

__all__ = ["base_url", "bind", "serve"]

GRACEFUL_SECONDS = 8
"""How long open requests may take to end once the server was told to stop."""

BACKLOG = 2048
"""Connections that the kernel keeps waiting."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    settings: Settings,
    *,
    announce: Callable[[str], None],
    announce_stop: Callable[[int], None] | None = None,
) -> None:
    """Serve a configuration until SIGTERM or SIGINT.

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
    """
    _log_to_stderr()
    with contextlib.closing(bind(settings.server.host, settings.server.port)) as listener:
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
        server = _Server(config, app, lambda: announce(base_url(listener)), announce_stop)
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_serve(server, app, listener))


async def _serve(server: _Server, app: FastAPI, listener: socket.socket) -> None:
    with _heard(server.stop):
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


class _Server(uvicorn.Server):
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
        """Drain, then end; called again, end at once. The listeners stay open while it drains."""
        if self.started and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        else:
            self.force_exit = self.started
            self.should_exit = True

    async def _drain(self) -> None:
        if self._announce_stop is not None:
            self._announce_stop(self._app.state.door.open_service.runs_under_way)
        try:
            await self._app.state.door.open_service.drain()
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


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        PortInUse: another program listens there.
        UsageFailed: the host is no address of this machine, or the port may not be taken.
    """
    listener = _unbound(host)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.set_inheritable(False)
    except OSError as error:
        listener.close()
        raise _refusal(error, host, port) from error
    return listener


def _unbound(host: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise UsageFailed(
            f"{host} is no address of this machine", hint="see host in [server], or --host"
        ) from error
    return socket.socket(family, socket.SOCK_STREAM)


def _refusal(error: OSError, host: str, port: int) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"port {port} on {host} is in use",
            cause="another program listens there",
            hint=f"stop it, or choose another with --port, for example --port {port + 1}"
            if port < 65_535
            else "stop it, or choose another with --port",
        )
    if error.errno == errno.EACCES:
        return UsageFailed(
            f"port {port} on {host} needs more rights", hint="choose a port from 1024 on"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageFailed(
            f"{host} is no address of this machine", hint="see host in [server], or --host"
        )
    return Unavailable(f"cannot listen on {host}, port {port}", cause=os.strerror(error.errno or 0))


def base_url(listener: socket.socket) -> str:
    """The URL of what listens there, with the port that it really has."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if listener.family == socket.AF_INET6 else host
    return f"http://{shown}:{port}"


def _log_to_stderr() -> None:
    """Send the log to stderr, unless the program has already said where it goes."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
