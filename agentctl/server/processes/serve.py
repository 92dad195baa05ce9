"""`serve`: one process that listens, until a signal tells it to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import uvicorn

from agentctl.server.app import create_app, running
from agentctl.server.observability import metrics_endpoint
from agentctl.server.observability.log import log_to_stderr
from agentctl.server.observability.loop_lag import LoopLag
from agentctl.server.observability.traffic import RequestCounters
from agentctl.server.processes.listener import base_url
from agentctl.server.transport.protocol import build_protocol_class

if TYPE_CHECKING:
    from fastapi import FastAPI

    from agentctl.config.settings import Settings

__all__ = ["Server", "ServerController", "serve", "serve_on_socket"]

GRACEFUL_SECONDS = 8
"""How long open requests may take to end once the server was told to stop."""

STEP_TOLERANCE_SECONDS = 1.0
"""How much later than this server another one of the same processes may be done with a step."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ServerController(Protocol):
    """Who starts a server: is told what becomes of it, and may guide it."""

    def started(self) -> None:
        """Requests are answered."""

    def stopping(self, runs: int) -> None:
        """It drains, and waits for so many runs."""

    def guiding(self, server: Server) -> AbstractContextManager[None]:
        """Entered, inside the event loop, before anything is opened; left when all is closed."""

    def showing(self, text: Callable[[int], str]) -> AbstractAsyncContextManager[None]:
        """Entered while it serves, where metrics are wanted: `text` makes them for a place."""

    async def meet(self, seconds: float) -> None:
        """Wait until those that serve together have come as far in their ends, up to a time."""


def serve(
    settings: Settings,
    *,
    announce: Callable[[str], None],
    announce_stop: Callable[[int | None], None] | None = None,
    announce_metrics: Callable[[str], None] | None = None,
) -> None:
    """Serve a configuration in this process until SIGTERM or SIGINT.

    The first signal lets runs end for up to `server.drain_seconds`, and takes no new ones; a second
    one cancels them at once. The port is taken before anything else is opened. A database that is
    not there is made.

    Args:
        settings: the configuration; port 0 takes any that is free.
        announce: is told the base URL once requests are answered.
        announce_stop: is told of the first signal, with the number of runs that are waited for.
        announce_metrics: is told, before that, where metrics are shown, if they are.

    Raises:
        PortInUse: another program listens there.
        UsageFailed: the host is no address of this machine, or the port may not be taken, or the
            package for metrics is missing.
        Unavailable: a database cannot be used.
        SchemaMismatch: a database is older or newer than this code.
        InvalidKey: the verification keys are refused, or there are none.
        InvalidConfiguration: a tool cannot be used.
    """
    log_to_stderr(settings.log)
    with metrics_endpoint.open_listeners(settings, announce_metrics) as (listener, metrics):
        serve_on_socket(
            listener, settings, _SingleProcess(listener, announce, announce_stop, metrics)
        )


def serve_on_socket(
    listener: socket.socket, settings: Settings, overseer: ServerController
) -> None:
    """Serve on a socket that listens, until it is told to stop; see `serve`.

    Args:
        listener: where requests come from; it is closed at the end.
        settings: the configuration.
        overseer: who is told of it, and may stop it as a signal may.
    """
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=build_protocol_class(settings.limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )
    server = Server(config, app, overseer)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(server, app, listener, overseer))


class _SingleProcess:
    """The overseer of a server that is the only process."""

    def __init__(
        self,
        listener: socket.socket,
        announce: Callable[[str], None],
        announce_stop: Callable[[int | None], None] | None,
        metrics: socket.socket | None,
    ) -> None:
        self._metrics = metrics
        self._listener = listener
        self._announce = announce
        self._announce_stop = announce_stop

    def started(self) -> None:
        self._announce(base_url(self._listener))

    def stopping(self, runs: int) -> None:
        if self._announce_stop is not None:
            # Whoever was to read it may be gone, as `tee` is after a Ctrl-C for both.
            with contextlib.suppress(OSError):
                self._announce_stop(runs)

    def guiding(self, server: Server) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def showing(self, text: Callable[[int], str]) -> AbstractAsyncContextManager[None]:
        async def render() -> str:
            return text(0)

        assert self._metrics is not None
        return metrics_endpoint.serve_metrics(self._metrics, render)

    async def meet(self, seconds: float) -> None:
        """Nobody is waited for."""


async def _serve(
    server: Server, app: FastAPI, listener: socket.socket, overseer: ServerController
) -> None:
    with _handle_signals(server.stop), overseer.guiding(server):
        async with running(app), _observe_server(app, overseer):
            await server.serve(sockets=[listener])


@contextlib.asynccontextmanager
async def _observe_server(app: FastAPI, overseer: ServerController) -> AsyncIterator[None]:
    """Sample how late the loop is, and count and show what is wanted, while the block lasts."""
    door, lag = app.state.door, LoopLag()
    with lag.sample_in_background():
        if not door.settings.metrics.listen:
            yield
            return
        from agentctl.server.observability.metrics import ServerMetrics

        hosting, traffic = door.running_service.hosting, RequestCounters()
        metrics = ServerMetrics(
            traffic, lag, hosting.engine, hosting.observer, hosting.databases.opened
        )
        door.request_observers = [*door.request_observers, traffic.count]
        async with overseer.showing(metrics.text):
            yield


@contextlib.contextmanager
def _handle_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have the loop call `stop` on a signal, from before anything is opened to after the close."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


class Server(uvicorn.Server):
    """uvicorn's server, that takes no signals of its own, says when it listens, and drains."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, overseer: ServerController) -> None:
        super().__init__(config)
        self._app = app
        self._overseer = overseer
        self._signals = 0
        self._draining: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Nothing: uvicorn would raise them again at the end, and exit with their number."""
        yield

    def stop(self) -> None:
        """A signal came: drain, then end; another one came: end at once.

        A first one may come behind what the overseer said, when it is for every process.
        """
        self._signals += 1
        if self._signals == 1:
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
        """Go to the end in step with those that serve together: a request or a stream here may be
        about a run there.
        """
        service = self._app.state.door.running_service
        loop = asyncio.get_running_loop()
        deadline = loop.time() + service.settings.server.drain_seconds + STEP_TOLERANCE_SECONDS
        try:
            self._overseer.stopping(service.live_run_count)
            await service.drain()
            await self._overseer.meet(deadline - loop.time())
            await service.cancel_runs()
            await self._overseer.meet(STEP_TOLERANCE_SECONDS)
        finally:
            self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        if not self.should_exit:
            self._overseer.started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening and end what is still worked on: open streams end with their runs."""
        if self._draining is not None:
            self._draining.cancel()
        ending = asyncio.create_task(self._app.state.door.running_service.stop_runs())
        try:
            await super().shutdown(sockets)
        finally:
            await ending
