"""A worker process as its parent sees it: started, spoken to, told to stop, looked after."""

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
from typing import Any

from agentctl.errors import AgentctlError, Unavailable
from agentctl.server.observability.metrics_channel import MetricsChannel
from agentctl.server.processes.worker_channel import DRAIN, END, PROCEED, error_from_message

__all__ = ["Backoff", "WorkerHandle"]

MINIMUM_PAUSE = 0.1
MAXIMUM_PAUSE = 5.0
STEADY_SECONDS = 5.0
"""Who has served for so long did not die at once."""

FINAL_MESSAGE_SECONDS = 1.0
"""How long what an ended process said may take to be read."""


class Backoff:
    """How long to wait before a process is started anew, in seconds: longer each time that the one
    before died at once.
    """

    def __init__(self) -> None:
        self._pause = MINIMUM_PAUSE

    def after(self, served_seconds: float) -> float:
        """The pause behind a process that has served for so long, 0 when it never did."""
        if served_seconds >= STEADY_SECONDS:
            self._pause = MINIMUM_PAUSE
            return 0.0
        pause = self._pause
        self._pause = min(2 * pause, MAXIMUM_PAUSE)
        return pause


class WorkerHandle:
    """One worker. Made by `WorkerProcess.start`, inside the parent's event loop.

    Attributes:
        failure: why it ended, when it said so.
        steps: how many steps of its end it has taken.
        metrics: the line over which it is asked for them.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        metrics: MetricsChannel,
        stepped: Callable[[], None],
    ) -> None:
        self.metrics = metrics
        self._process = process
        self._reader = reader
        self._writer = writer
        self._ready_at: float | None = None
        self._served: float = 0.0
        self._runs: int | None = None
        self._stepped = stepped
        self._passed = 0
        self._begun = asyncio.Event()
        self._counted = asyncio.Event()
        self._gone = asyncio.Event()
        self._watching = asyncio.create_task(self._watch())
        self.failure: AgentctlError | None = None
        self.steps = 0

    @classmethod
    async def start(
        cls, listener: socket.socket, settings: str, stepped: Callable[[], None]
    ) -> WorkerHandle:
        """Start one.

        A new session: Ctrl-C at the terminal is for the parent alone, which then tells its workers.

        Args:
            listener: where it is to listen.
            settings: the line of text that the settings were made.
            stepped: is called when it has taken a step of its end, and waits for the others.

        Raises:
            Unavailable: the system starts no more processes.
        """
        (ours, theirs), (asking, asked) = socket.socketpair(), socket.socketpair()
        with theirs, asked:
            handed = (listener.fileno(), theirs.fileno(), asked.fileno())
            try:
                process = subprocess.Popen(
                    [*_worker_command(), *map(str, handed)],
                    pass_fds=handed,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                asking.close()
                raise Unavailable(
                    "No worker process can be started", cause=os.strerror(error.errno or 0)
                ) from None
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(settings.encode() + b"\n")
        return cls(process, reader, writer, await MetricsChannel.open(asking), stepped)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it has ever answered requests."""
        return self._ready_at is not None

    @property
    def served_seconds(self) -> float:
        """How long it has served; 0 when it never did. Known when it has ended."""
        return self._served

    @property
    def end(self) -> str:
        """How it ended, to stand behind its name."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"was killed by {_signal_name(-code)}"
        if self.failure is None:
            return f"ended with exit code {code}"
        return ": ".join(filter(None, ["failed", self.failure.detail, self.failure.cause]))

    async def wait_until_ready(self) -> None:
        """Wait until it answers requests, or has ended before that."""
        await self._begun.wait()

    async def ended(self) -> None:
        """Wait until the process is gone, and what it said has been heard."""
        await asyncio.shield(self._watching)

    async def runs_under_way(self, seconds: float) -> int | None:
        """How many runs it waits for, once told to stop; None when it has not said so in time."""
        if not self.is_ready:
            return 0
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._counted.wait(), seconds)
            return self._runs or 0
        return None

    def stop(self, *, at_once: bool) -> None:
        """Tell it to drain and end, or to end at once.

        This goes over the line, since a signal may come from elsewhere as well: a service manager
        that signals every process of a service would otherwise make two of one.
        """
        if self.is_ready:
            self._writer.write((END if at_once else DRAIN) + b"\n")
        else:
            self._process.terminate()

    def let_go(self, steps: int) -> None:
        """Let it go on behind so many steps of its end, unless it was."""
        if self._passed < steps:
            self._passed = steps
            self._writer.write(PROCEED + b"\n")

    def kill(self) -> None:
        """End it now, whatever it does."""
        self._process.kill()

    def look(self) -> None:
        """See whether the process is gone."""
        if self._process.poll() is not None:
            self._gone.set()

    async def _watch(self) -> None:
        """From the start to the end; the last words count even when they are read after it."""
        listening = asyncio.create_task(self._listen())
        await self._gone.wait()
        if self._ready_at is not None:
            self._served = time.monotonic() - self._ready_at
        await asyncio.wait({listening}, timeout=FINAL_MESSAGE_SECONDS)
        listening.cancel()
        self._writer.close()
        self.metrics.close()
        self._begun.set()
        self._counted.set()

    async def _listen(self) -> None:
        with contextlib.suppress(OSError):
            async for line in self._reader:
                if line.endswith(b"\n"):
                    self._hear(json.loads(line))

    def _hear(self, said: dict[str, Any]) -> None:
        if "ready" in said:
            self._ready_at = time.monotonic()
            self._begun.set()
        elif "stopping" in said:
            self._runs = said["stopping"]
            self._counted.set()
        elif "waiting" in said:
            self.steps += 1
            self._stepped()
        else:
            self.failure = error_from_message(said["failed"])


def _worker_command() -> list[str]:
    """The program of a worker. What it may import is what this process may.

    `-m` puts the current folder first on the path of modules, as it did here only if this program
    was started that way.
    """
    by_name = getattr(sys.modules["__main__"], "__spec__", None) is not None
    path = [] if by_name and not sys.flags.safe_path else ["-P"]
    return [sys.executable, *path, "-m", "agentctl.server.processes.worker_main"]


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
