"""`agentctl serve` in one process, which listens until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from agentctl.config.settings import Settings
from agentctl.errors import InternalError
from agentctl.records.text import format_count
from agentctl.server.app import Application, create_app, get_app_state, running
from agentctl.server.processes.allocator import limit_arenas
from agentctl.server.processes.listener import Announcements, base_url, open_listeners
from agentctl.server.processes.metrics_endpoint import serve_metrics
from agentctl.server.processes.service_manager import LEAVE_SECONDS, ServiceManager, take_socket
from agentctl.server.processes.user_application import load_application, run_lifespan
from agentctl.server.transport.server import HttpServer
from agentctl.telemetry.log import log_to_stderr
from agentctl.telemetry.measurements import LoopLag, RequestCounters
from agentctl.work.event_loop import handle_signals, run_event_loop, stop_signals

GRACEFUL_SECONDS = 8
"""Time for open requests to end after the stop."""

STEP_TOLERANCE_SECONDS = 1.0
"""Time by which another process of the same server may finish a step of the shutdown later."""

PAUSE_SECONDS = 0.05
"""Interval of looking for connections that wait for a request."""

QUIET_LOOKS = 2
"""Looks in sequence that must find no such connection, before a server that leaves drains."""

GC_THRESHOLDS = (10_000, 20, 20)
"""The arguments of `gc.set_threshold`.

Allocations that start a collection of the young generation, and collections of one generation that
start a collection of the next one.
"""

SHOWN_RUNS = 20
"""Ids of cancelled runs in one log line."""

_log = logging.getLogger("agentctl.server")


class ServerController(Protocol):
    """The starter of a server process: receives its state, and can stop it."""

    def started(self) -> None:
        """Requests are accepted."""

    def stopping(self, runs: int) -> None:
        """The server drains, with this number of live runs."""

    def control(self, server: DrainingServer) -> AbstractContextManager[None]:
        """Context around the whole life of the server, inside the event loop."""

    def publish_metrics(self, text: Callable[[int], str]) -> AbstractAsyncContextManager[None]:
        """Context that publishes metrics; `text` returns them for a worker number."""

    async def wait_for_others(self, seconds: float) -> None:
        """Wait until all processes of the server have done this step of the shutdown."""


def serve(settings: Settings, announcements: Announcements, app: str | None = None) -> None:
    """Serve a configuration in this process until a stop signal.

    The first SIGTERM, SIGINT or SIGHUP drains: no new runs are accepted, and live runs can end for
    up to `server.drain_seconds`. A second signal cancels them at once. The port is bound before
    anything else is opened. A missing database is created.

    Args:
        app: the application of a user as `module:name`; None for the application of agentctl.

    Raises:
        PortInUse: another program listens on the port.
        UsageError: the host is not an address of this machine, the process may not bind the port,
            or the package for metrics is missing.
        Unavailable: a database cannot be used.
        SchemaMismatch: the schema of a database is older or newer than this version.
        InvalidKey: the verification keys are rejected, or there are none.
        InvalidConfiguration: a tool cannot be used.
        InternalError: a tool cancelled the tasks of the server.
    """
    log_to_stderr(settings.log)
    with open_listeners(settings, announcements) as (listener, metrics):
        manager = ServiceManager.from_environment()
        controller = _SingleProcess(listener, metrics, manager, announcements)
        serve_on_socket(listener, settings, controller, app)


def serve_on_socket(
    listener: socket.socket,
    settings: Settings,
    controller: ServerController,
    reference: str | None = None,
) -> None:
    """Serve on a listening socket until a signal or the controller stops the server; see `serve`.

    The socket is closed at the end.
    """
    limit_arenas()
    app = _load(settings, reference)
    server = DrainingServer(app, controller)

    async def run() -> None:
        handlers = dict.fromkeys(stop_signals(), server.handle_signal)
        with handle_signals(handlers), controller.control(server):
            async with running(app), run_lifespan(app) as state, _observe_server(app, controller):
                server.request_state = state
                await server.serve(sockets=[listener])

    try:
        run_event_loop(run(), loop_factory=server.loop_factory())
    except asyncio.CancelledError:
        raise InternalError(
            "a tool cancelled the tasks of the server, which had to end",
            hint="a tool must cancel only tasks that it has started",
        ) from None


def _load(settings: Settings, reference: str | None) -> Application:
    if reference is None:
        return create_app(settings)
    app = load_application(reference)
    app.configure(settings)
    return app


@dataclass(frozen=True, slots=True)
class _SingleProcess:
    """The controller of a server with one process."""

    listener: socket.socket
    metrics: socket.socket | None
    manager: ServiceManager
    announcements: Announcements

    def started(self) -> None:
        self.announcements.start(base_url(self.listener))
        self.manager.notify("READY=1", f"STATUS=serves {base_url(self.listener)}")

    def stopping(self, runs: int) -> None:
        self.manager.notify(
            "STOPPING=1", f"STATUS=waits for the end of {format_count(runs, 'run')}"
        )
        with contextlib.suppress(OSError):
            self.announcements.stop(runs)

    def control(self, server: DrainingServer) -> AbstractContextManager[None]:
        return self.manager.show_life()

    def publish_metrics(self, text: Callable[[int], str]) -> AbstractAsyncContextManager[None]:
        async def render() -> str:
            return text(0)

        assert self.metrics is not None
        return serve_metrics(self.metrics, render)

    async def wait_for_others(self, seconds: float) -> None:
        """Return at once: there is no other process."""


@contextlib.asynccontextmanager
async def _observe_server(app: Application, controller: ServerController) -> AsyncIterator[None]:
    """Sample the event loop lag and, if configured, publish metrics while the block lasts."""
    state = get_app_state(app)
    lag = LoopLag()
    with lag.sample_in_background():
        if not state.settings.metrics.listen:
            yield
            return

        # It needs a package that is installed for metrics only.
        from agentctl.telemetry.metrics import ServerMetrics

        hosting = state.running_service.hosting
        requests = RequestCounters()
        metrics = ServerMetrics(
            requests,
            lag,
            hosting.engine,
            hosting.monitor,
            hosting.databases.get_open,
            hosting.catalog.mcp,
            hosting.deliveries.counters,
            hosting.jobs,
        )
        state.request_observers = [*state.request_observers, requests.count]
        async with controller.publish_metrics(metrics.render):
            yield


class DrainingServer(HttpServer):
    """A server that drains before it ends, in step with the other processes.

    Args:
        app: the application, which `running` has opened before the server is stopped.
    """

    def __init__(self, app: Application, controller: ServerController) -> None:
        super().__init__(app, GRACEFUL_SECONDS)
        self._state = get_app_state(app)
        self._controller = controller
        self._signals = 0
        self._leaving: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._has_clients = self.awaits_requests

    def handle_signal(self) -> None:
        """Drain on the first signal, end at once on the second.

        If the controller has already started the drain, the first signal changes nothing: it was
        sent to every process of the server.
        """
        self._signals += 1
        if self._signals > 1:
            self.end()
        elif take_socket() is None:
            self.drain()
        else:
            self.leave()

    def drain(self) -> None:
        """Accept no new runs, wait for live runs, then end. Other requests are still served."""
        if not self.started:
            self.end()
        elif self._draining is None:
            self.stop_keeping_alive()
            self._draining = asyncio.create_task(self._drain())

    def end(self) -> None:
        """Cancel live runs and end."""
        self.request_exit(force=self.started)

    def leave(self) -> None:
        """Release the port, serve the clients of open connections once more, then drain.

        Another process accepts new connections on the same socket. The clients of open connections
        have reached this process, and do not know that it leaves: each response closes its
        connection, and an idle connection ends at its usual time.
        """
        self._leave(self.awaits_requests)

    def give_way(self) -> None:
        """Release the port, serve connections on which no request has come yet, then drain.

        Requests on other connections are for the process that has replaced this one.
        """
        self._leave(self.awaits_first_requests)

    def _leave(self, has_clients: Callable[[], bool]) -> None:
        self.close_listeners()
        if not self.started:
            self.end()
        elif self._leaving is None:
            self.stop_keeping_alive()
            self._has_clients = has_clients
            self._leaving = asyncio.create_task(self._drain_without_clients())

    async def _drain_without_clients(self) -> None:
        await self._wait_for_clients()
        self.drain()

    async def _wait_for_clients(self) -> None:
        """Wait until no client is served any more, for `LEAVE_SECONDS` at most."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEAVE_SECONDS
        quiet_looks = 0
        # Look twice: the kernel may have handed over more connections, and a request that has just
        # come starts its run soon.
        while quiet_looks < QUIET_LOOKS and loop.time() < deadline:
            await asyncio.sleep(PAUSE_SECONDS)
            quiet_looks = 0 if self._has_clients() else quiet_looks + 1

    async def _drain(self) -> None:
        """Drain in step with the other processes.

        A request or stream of this process may belong to a run of another process, so no process
        ends before all have done the same step.
        """
        service = self._state.running_service
        engine = service.hosting.engine
        loop = asyncio.get_running_loop()
        deadline = loop.time() + service.settings.server.drain_seconds + STEP_TOLERANCE_SECONDS
        try:
            self._controller.stopping(len(engine.root_runs()))
            await service.drain()
            await self._controller.wait_for_others(deadline - loop.time())

            live_runs = engine.root_runs()
            if live_runs:
                run_ids = ", ".join(run.run_id for run in live_runs[:SHOWN_RUNS])
                hidden_count = len(live_runs) - SHOWN_RUNS
                more = f" and {hidden_count} more" if hidden_count > 0 else ""
                text = "drain_seconds have passed: %d runs are cancelled: %s%s"
                _log.warning(text, len(live_runs), run_ids, more)
            await engine.cancel_runs()
            await self._controller.wait_for_others(STEP_TOLERANCE_SECONDS)
            if self._leaving is not None:
                await self._wait_for_clients()
        finally:
            self.request_exit(force=False)

    def on_listening(self) -> None:
        """Exempt the objects of the start from garbage collection, and make it less frequent.

        A full collection visits every object of the process: modules and declarations are most of
        them, and they live as long as it does. With many live runs it would stop the server often.
        """
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._controller.started()

    async def on_shutdown(self) -> None:
        """End live runs, so that open streams end with them."""
        for task in (self._leaving, self._draining):
            if task is not None:
                task.cancel()
        await self._state.running_service.hosting.engine.close()
