"""`agentctl serve` with several processes: a supervisor, and workers that serve.

The supervisor binds the port, starts the workers as new programs and replaces a worker that ends
by itself. It does not fork, because each worker opens its own databases, threads and event loop.
All workers accept connections on the same socket, so a connection that arrives during a
replacement is accepted by another worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Settings
from agentctl.config.tables import settings_to_text
from agentctl.errors import AgentctlError, InternalError, Unavailable
from agentctl.server.processes import worker_main
from agentctl.server.processes.listener import Announcements, base_url, open_listeners
from agentctl.server.processes.metrics_endpoint import MetricsChannel, gather_metrics, serve_metrics
from agentctl.server.processes.service_manager import LEAVE_SECONDS, ServiceManager, take_socket
from agentctl.store.databases import Databases
from agentctl.telemetry.log import log_to_stderr
from agentctl.work.event_loop import handle_signals, stop_signals

END_SECONDS = 10.0
"""Time for a worker to end, in addition to the time for its live runs."""

COUNT_SECONDS = 1.0
"""Time for the workers to report their live runs."""

SIGNAL_SPREAD_SECONDS = 0.1
"""Time until a signal to all processes of a server has reached the last of them."""

_log = logging.getLogger("agentctl.server")

MINIMUM_PAUSE = 0.1
"""Seconds before the first worker that ended early is replaced."""

MAXIMUM_PAUSE = 5.0
"""Seconds before the last of many workers that ended early is replaced."""

STEADY_SECONDS = 5.0
"""A worker that has served for this time is replaced without a pause."""

FINAL_MESSAGE_SECONDS = 1.0
"""Time to read the last messages of a process that has ended."""


def serve_with_workers(
    settings: Settings, announcements: Announcements, app: str | None = None
) -> None:
    """Serve with `server.workers` processes until a stop signal, as `serve.serve` does with one.

    Raises:
        AgentctlError: the errors of `serve.serve`.
        Unavailable: no process can be started.
        InternalError: a worker did not end in time, and was killed.
    """
    log_to_stderr(settings.log, with_process_id=True)
    with open_listeners(settings, announcements) as (listener, metrics):
        asyncio.run(Supervisor(settings, listener, metrics, announcements, app).run())


class Supervisor:
    """The parent of the workers. Each worker has a slot, numbered from 0.

    Attributes:
        _workers: the processes that may still exist.
        _starting: slots in which no worker has been ready yet; `_complete` is set when it is empty.
        _signals: number of stop signals; `_stopping` is set by the first one.
        _killed: ids of processes that did not end in time.
        _slots: the latest worker of each slot.
        _worker_settings: the settings of the next worker; a reload changes them.
    """

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        metrics: socket.socket | None,
        announcements: Announcements,
        app: str | None = None,
    ) -> None:
        self._settings = settings
        self._worker_settings = settings
        self._listener = listener
        self._metrics = metrics
        self._announcements = announcements
        self._app = app
        self._manager = ServiceManager.from_environment()

        self._slots: dict[int, WorkerHandle] = {}
        self._workers: set[WorkerHandle] = set()
        self._starting: set[int] = set()
        self._complete = asyncio.Event()

        self._signals = 0
        self._stopping = asyncio.Event()
        self._killed: list[int] = []

    async def run(self) -> None:
        """Prepare the databases and keep the workers running until a signal."""
        handlers: dict[int, Callable[[], None]] = dict.fromkeys(stop_signals(), self._stop)
        handlers[signal.SIGCHLD] = self._check_workers
        with handle_signals(handlers), self._manager.show_life():
            await prepare_databases(self._settings)
            try:
                async with self._publish_metrics():
                    await self._serve()
            finally:
                remaining_workers = list(self._workers)
                for worker in remaining_workers:
                    worker.kill()
                for worker in remaining_workers:
                    await worker.wait_until_ended()

        if self._killed:
            processes = ", ".join(map(str, self._killed))
            raise InternalError(
                f"worker processes did not end in time and were killed: {processes}",
                hint="their live runs become ERROR with WORKER_LOST at the next start",
            )

    def _publish_metrics(self) -> AbstractAsyncContextManager[None]:
        """Return the context in which the metrics of all workers are served, if configured."""
        if self._metrics is None:
            return contextlib.nullcontext()

        async def render() -> str:
            return await gather_metrics(
                {slot: worker.metrics.request for slot, worker in self._slots.items()}
            )

        return serve_metrics(self._metrics, render)

    async def _serve(self) -> None:
        """Start all workers, and keep their number until a signal."""
        first_workers = [await self._start_worker() for _ in range(self._settings.server.workers)]
        slots = range(len(first_workers))
        self._slots = dict(enumerate(first_workers))
        await asyncio.gather(*(worker.wait_until_ready() for worker in first_workers))
        # If none starts, another attempt would fail as well: the configuration is wrong.
        if not self._signals and not any(worker.is_ready for worker in first_workers):
            raise start_error(first_workers)

        self._starting = set(slots)
        keeping = asyncio.gather(*map(self._keep_slot, first_workers, slots))
        try:
            if await self._wait_unless_stopped(self._complete.wait()):
                self._announce_start()
            await self._wait_unless_stopped(asyncio.shield(keeping))
            await self._announce_live_runs()
            await keeping
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep_slot(self, worker: WorkerHandle, slot: int) -> None:
        """Replace the worker of a slot again and again, until a signal."""
        backoff = Backoff()
        while True:
            self._slots[slot] = worker
            await worker.wait_until_ready()
            if worker.is_ready:
                self._starting.discard(slot)
                if not self._starting:
                    self._complete.set()

            await worker.wait_until_ended()
            self._workers.discard(worker)
            if self._signals:
                # The other workers must not wait for this one.
                self._release_step()
                return

            pause = backoff.next_pause(worker.served_seconds)
            _log.error("worker process %d %s; starting another one", worker.pid, worker.end)
            replacement: WorkerHandle | None = None
            while replacement is None:
                await self._wait_unless_stopped(asyncio.sleep(pause))
                if self._signals:
                    return
                try:
                    replacement = await self._start_worker()
                except Unavailable as error:
                    _log.error("%s: %s", error.detail, error.cause)
                    pause = backoff.next_pause(0)
            worker = replacement

    async def _start_worker(self) -> WorkerHandle:
        """Start a worker; stop it at once if a signal has come meanwhile."""
        worker = await WorkerHandle.start(
            self._listener, self._worker_settings, self._release_step_soon, self._app
        )
        self._workers.add(worker)
        # SIGCHLD may have come before the worker was in the set.
        worker.check_exit()
        if self._signals:
            worker.stop(at_once=self._signals > 1, leave=False)
        return worker

    async def _wait_unless_stopped(self, awaitable: Awaitable[object]) -> bool:
        """Wait for an awaitable, until a signal at most; return True if it ended before."""
        task = asyncio.ensure_future(awaitable)
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return task.done() and not self._signals
        finally:
            task.cancel()
            stopped.cancel()

    def _announce_start(self) -> None:
        url = base_url(self._listener)
        self._announcements.start(url)
        self._manager.notify("READY=1", f"STATUS=serves {url}")

    async def _announce_live_runs(self) -> None:
        reports = [worker.count_live_runs(COUNT_SECONDS) for worker in self._workers]
        counts = await asyncio.gather(*reports)
        known_counts = [count for count in counts if count is not None]
        total = sum(known_counts) if len(known_counts) == len(counts) else None
        with contextlib.suppress(OSError):
            self._announcements.stop(total)

    def _check_workers(self) -> None:
        for worker in self._workers:
            worker.check_exit()

    def _stop(self) -> None:
        """Handle a stop signal: the first one drains, the second one ends the workers at once."""
        self._signals += 1
        is_first = self._signals == 1
        self._manager.notify("STOPPING=1", "STATUS=waits for the end of the runs")

        # The socket of a service manager remains: the next server accepts new connections.
        leave = take_socket() is not None
        for worker in self._workers:
            worker.stop(at_once=not is_first, leave=leave)

        seconds = END_SECONDS
        if is_first:
            # After a reload with other settings, the previous process may still drain.
            drains = [worker.drain_seconds for worker in self._workers]
            seconds += max(drains, default=0.0)
            if leave:
                seconds += 2 * LEAVE_SECONDS
        asyncio.get_running_loop().call_later(seconds, self._kill_late_workers)
        self._stopping.set()

    def _release_step_soon(self) -> None:
        """Handle a worker that waits for the others, after a short delay.

        If a service manager signals every process, the worker may receive its signal before the
        supervisor does.
        """
        asyncio.get_running_loop().call_later(SIGNAL_SPREAD_SECONDS, self._release_step)

    def _release_step(self) -> None:
        """Release each worker whose step of the shutdown all other workers have done as well.

        Without a stop signal, a worker stops by itself and does not wait for the others.
        """
        serving_workers = [worker for worker in self._workers if worker.is_ready]
        common_steps = min((worker.steps for worker in serving_workers), default=0)
        for worker in serving_workers:
            worker.proceed(common_steps if self._signals else worker.steps)

    def _kill_late_workers(self) -> None:
        for worker in self._workers:
            worker.kill()
            # A worker that still imports agents ends late as well, but it has no live runs.
            if worker.is_ready:
                _log.error("worker process %d did not end in time and was killed", worker.pid)
                self._killed.append(worker.pid)


async def prepare_databases(settings: Settings) -> None:
    """Create and migrate the databases, and raise the errors that every worker would raise."""
    Verifier(settings)
    databases = Databases(settings, create=True)
    try:
        await databases.open_all()
    finally:
        await databases.close()


def start_error(first_workers: list[WorkerHandle]) -> AgentctlError:
    """Return the error that one of the first workers has sent, or describe the end of the first."""
    for worker in first_workers:
        if worker.failure is not None:
            return worker.failure
    return InternalError(f"a worker process {first_workers[0].end}")


class Backoff:
    """The pause before a worker is replaced: longer after each worker that ended early."""

    def __init__(self) -> None:
        self._pause = MINIMUM_PAUSE

    def next_pause(self, served_seconds: float) -> float:
        """Return the pause in seconds after a worker that has served for `served_seconds`."""
        if served_seconds >= STEADY_SECONDS:
            self._pause = MINIMUM_PAUSE
            return 0.0
        pause = self._pause
        self._pause = min(2 * pause, MAXIMUM_PAUSE)
        return pause


class WorkerHandle:
    """One worker process. Created by `WorkerHandle.start`, inside the supervisor's event loop.

    Attributes:
        drain_seconds: time that its settings give its live runs.
        failure: the error that ended it, if it sent one.
        steps: number of steps of the shutdown that it has done.
        metrics: the channel for metrics requests.
        served_seconds: time from ready to exit, 0 if it was never ready. Known after the exit.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        metrics: MetricsChannel,
        on_step: Callable[[], None],
        drain_seconds: float,
    ) -> None:
        self.metrics = metrics
        self.drain_seconds = drain_seconds
        self.failure: AgentctlError | None = None
        self.served_seconds = 0.0
        self.steps = 0

        self._process = process
        self._reader = reader
        self._writer = writer
        self._on_step = on_step

        # Its messages so far.
        self._ready_at: float | None = None
        self._live_runs: int | None = None
        self._released_steps = 0
        self._ready_or_ended = asyncio.Event()
        self._live_runs_known = asyncio.Event()

        self._exited = asyncio.Event()
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def start(
        cls,
        listener: socket.socket,
        settings: Settings,
        on_step: Callable[[], None],
        app: str | None = None,
    ) -> WorkerHandle:
        """Start a worker.

        It gets a new session, so that Ctrl-C at the terminal reaches the supervisor only.

        Args:
            on_step: is called when the worker has done a step of the shutdown and waits.
            app: the application of a user as `module:name`; None without one.

        Raises:
            Unavailable: the system cannot start another process.
        """
        # The worker can import the same modules as this process: `-m` puts the current folder first
        # on the module path; `-P` prevents this, unless this program was started with `-m` too.
        by_name = getattr(sys.modules["__main__"], "__spec__", None) is not None
        path_options = [] if by_name and not sys.flags.safe_path else ["-P"]
        command = [sys.executable, *path_options, "-m", "agentctl.server.processes.worker_main"]

        own_socket, worker_socket = socket.socketpair()
        own_metrics, worker_metrics = socket.socketpair()

        # This process keeps its ends only: the end of the worker closes the channels then.
        with worker_socket, worker_metrics:
            inherited = (listener.fileno(), worker_socket.fileno(), worker_metrics.fileno())
            arguments = [str(descriptor) for descriptor in inherited]
            if app:
                arguments.append(app)

            try:
                process = subprocess.Popen(
                    [*command, *arguments],
                    pass_fds=inherited,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                own_socket.close()
                own_metrics.close()
                raise Unavailable(
                    "No worker process can be started", cause=os.strerror(error.errno or 0).lower()
                ) from None

        reader, writer = await asyncio.open_connection(sock=own_socket)
        writer.write(settings_to_text(settings).encode() + b"\n")
        metrics = await MetricsChannel.open(own_metrics)
        drain_seconds = settings.server.drain_seconds
        return cls(process, reader, writer, metrics, on_step, drain_seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """True if the worker has ever accepted requests."""
        return self._ready_at is not None

    @property
    def end(self) -> str:
        """The reason of its exit, as a predicate: "was killed by SIGKILL"."""
        code = self._process.returncode
        if code is not None and code < 0:
            # A real-time signal has no name.
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
            return f"was killed by signal {-code}"

        if self.failure is None:
            return f"ended with exit code {code}"
        return ": ".join(filter(None, ["failed", self.failure.detail, self.failure.cause]))

    async def wait_until_ready(self) -> None:
        """Wait until the worker accepts requests, or has ended before."""
        await self._ready_or_ended.wait()

    async def wait_until_ended(self) -> None:
        """Wait until the process has ended and its messages have been read."""
        await asyncio.shield(self._watching)

    async def count_live_runs(self, seconds: float) -> int | None:
        """Return the live runs of a stopping worker; None if it does not report in time."""
        if not self.is_ready:
            return 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._live_runs_known.wait()
            return self._live_runs or 0
        return None

    def stop(self, *, at_once: bool, leave: bool) -> None:
        """Have the worker drain and end, or end at once.

        With `leave`, a worker that drains accepts no new connections.

        The command is not a signal: a service manager may signal every process of the service, and
        the worker would take the two signals for a request to end at once.
        """
        if not self.is_ready:
            self._process.terminate()
            return

        command = worker_main.DRAIN
        if at_once:
            command = worker_main.END
        elif leave:
            command = worker_main.LEAVE
        self._writer.write(command + b"\n")

    def give_way(self) -> None:
        """Have a ready worker accept no new connections, drain and end: it has been replaced."""
        self._writer.write(worker_main.GIVE_WAY + b"\n")

    def proceed(self, steps: int) -> None:
        """Release the worker after this number of steps of the shutdown, once."""
        if self._released_steps < steps:
            self._released_steps = steps
            self._writer.write(worker_main.PROCEED + b"\n")

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def check_exit(self) -> None:
        """Notice the end of the process; SIGCHLD does not tell which process has ended."""
        if self._process.poll() is not None:
            self._exited.set()

    async def _watch(self) -> None:
        """Wait for the exit of the process and for its last messages; release all who wait."""
        reading = asyncio.create_task(self._read_messages())
        await self._exited.wait()
        if self._ready_at is not None:
            self.served_seconds = time.monotonic() - self._ready_at

        # A process that the worker has left behind may keep its end of the channel open.
        await asyncio.wait({reading}, timeout=FINAL_MESSAGE_SECONDS)
        reading.cancel()
        self._writer.close()
        self.metrics.close()
        self._ready_or_ended.set()
        self._live_runs_known.set()

    async def _read_messages(self) -> None:
        with contextlib.suppress(OSError):
            async for line in self._reader:
                if not line.endswith(b"\n"):
                    # The worker was killed while it wrote.
                    return

                message = json.loads(line)
                if "ready" in message:
                    self._ready_at = time.monotonic()
                    self._ready_or_ended.set()
                elif "stopping" in message:
                    self._live_runs = message["stopping"]
                    self._live_runs_known.set()
                elif "waiting" in message:
                    self.steps += 1
                    self._on_step()
                else:
                    self.failure = worker_main.error_from_message(message["failed"])
