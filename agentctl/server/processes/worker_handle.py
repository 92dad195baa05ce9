"""A worker process, as the supervisor starts, stops and watches it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from agentctl.errors import AgentctlError, Unavailable
from agentctl.server.observability.metrics_endpoint import MetricsChannel
from agentctl.server.processes.worker_channel import (
    DRAIN,
    END,
    GIVE_WAY,
    LEAVE,
    PROCEED,
    error_from_message,
)

MINIMUM_PAUSE = 0.1
MAXIMUM_PAUSE = 5.0
STEADY_SECONDS = 5.0
"""A worker that has served for this time is replaced without a pause."""

FINAL_MESSAGE_SECONDS = 1.0
"""Time to read the last messages of a process that has ended."""


class Backoff:
    """The pause before a worker is replaced: longer after each one that ended early."""

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
    ) -> None:
        self.metrics = metrics
        self._process = process
        self._reader = reader
        self._writer = writer
        self._ready_at: float | None = None
        self._live_runs: int | None = None
        self._on_step = on_step
        self._released_steps = 0
        self._ready_or_ended = asyncio.Event()
        self._live_runs_known = asyncio.Event()
        self._exited = asyncio.Event()
        self._watching = asyncio.create_task(self._watch())
        self.failure: AgentctlError | None = None
        self.served_seconds = 0.0
        self.steps = 0

    @classmethod
    async def start(
        cls, listener: socket.socket, settings: str, on_step: Callable[[], None]
    ) -> WorkerHandle:
        """Start a worker.

        It gets a new session, so that Ctrl-C at the terminal reaches the supervisor only.

        Args:
            listener: the socket to accept connections on.
            settings: the settings as a line of text.
            on_step: is called when the worker has done a step of the shutdown and waits.

        Raises:
            Unavailable: the system cannot start another process.
        """
        # The worker can import the same modules as this process: `-m` puts the current folder first
        # on the module path; `-P` prevents this, unless this program was started with `-m` too.
        by_name = getattr(sys.modules["__main__"], "__spec__", None) is not None
        path = [] if by_name and not sys.flags.safe_path else ["-P"]
        command = [sys.executable, *path, "-m", "agentctl.server.processes.worker_main"]
        (ours, theirs), (our_metrics, their_metrics) = socket.socketpair(), socket.socketpair()
        with theirs, their_metrics:
            inherited = (listener.fileno(), theirs.fileno(), their_metrics.fileno())
            try:
                process = subprocess.Popen(
                    [*command, *map(str, inherited)],
                    pass_fds=inherited,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                our_metrics.close()
                raise Unavailable(
                    "No worker process can be started", cause=os.strerror(error.errno or 0).lower()
                ) from None
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(settings.encode() + b"\n")
        return cls(process, reader, writer, await MetricsChannel.open(our_metrics), on_step)

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
        if self.is_ready:
            command = END if at_once else LEAVE if leave else DRAIN
            self._writer.write(command + b"\n")
        else:
            self._process.terminate()

    def give_way(self) -> None:
        """Have a ready worker accept no new connections, drain and end: it has been replaced."""
        self._writer.write(GIVE_WAY + b"\n")

    def proceed(self, steps: int) -> None:
        """Release the worker after this number of steps of the shutdown, once."""
        if self._released_steps < steps:
            self._released_steps = steps
            self._writer.write(PROCEED + b"\n")

    def kill(self) -> None:
        self._process.kill()

    def check_exit(self) -> None:
        if self._process.poll() is not None:
            self._exited.set()

    async def _watch(self) -> None:
        listening = asyncio.create_task(self._read_messages())
        await self._exited.wait()
        if self._ready_at is not None:
            self.served_seconds = time.monotonic() - self._ready_at
        await asyncio.wait({listening}, timeout=FINAL_MESSAGE_SECONDS)
        listening.cancel()
        self._writer.close()
        self.metrics.close()
        self._ready_or_ended.set()
        self._live_runs_known.set()

    async def _read_messages(self) -> None:
        with contextlib.suppress(OSError):
            async for line in self._reader:
                if not line.endswith(b"\n"):
                    return  # The worker was killed while it wrote.
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
                    self.failure = error_from_message(message["failed"])
