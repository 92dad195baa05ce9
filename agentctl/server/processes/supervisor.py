"""`serve` with several processes: a parent that works on nothing, and workers that serve.

The parent takes the port, and starts its workers as programs of their own (not by forking: each
opens its own databases, threads and event loop). One that ends unasked is replaced. The workers
listen on the same socket, so whoever is free takes the next connection, and a connection that
comes while one is replaced is taken by another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from agentctl.config.transfer import settings_to_text
from agentctl.errors import AgentctlError, InternalError, Unavailable
from agentctl.server.observability import metrics_endpoint
from agentctl.server.observability.log import log_to_stderr
from agentctl.server.observability.metrics_channel import gather_metrics
from agentctl.server.processes.listener import base_url
from agentctl.server.processes.worker_handle import Backoff, WorkerHandle

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

__all__ = ["serve_with_workers"]

END_SECONDS = 10.0
"""How long a worker may take to end beyond the time that its runs are given."""

COUNT_SECONDS = 1.0
"""How long to wait for the workers to say how many runs they work on."""

SIGNAL_SPREAD_SECONDS = 0.1
"""How long a signal for all processes of a server may take from the first to the last of them."""

_log = logging.getLogger("agentctl.server")


def serve_with_workers(
    settings: Settings,
    *,
    announce: Callable[[str], None],
    announce_stop: Callable[[int | None], None] | None = None,
    announce_metrics: Callable[[str], None] | None = None,
) -> None:
    """Serve a configuration with `server.workers` processes until SIGTERM or SIGINT.

    The first signal lets runs end for up to `server.drain_seconds`, and takes no new ones; a second
    one cancels them at once. The port is taken before anything else is opened. A database that is
    not there is made.

    Args:
        settings: the configuration; port 0 takes any that is free.
        announce: is told the base URL once every worker answers requests.
        announce_stop: is told of the first signal, with the number of runs that are waited for, or
            None when not every worker said so in time.
        announce_metrics: is told, before that, where metrics are shown, if they are.

    Raises:
        PortInUse: another program listens there.
        UsageFailed: the host is no address of this machine, or the port may not be taken, or the
            package for metrics is missing.
        Unavailable: a database cannot be used, or no process can be started.
        SchemaMismatch: a database is older or newer than this code.
        InvalidKey: the verification keys are refused, or there are none.
        InvalidConfiguration: a tool cannot be used.
        InternalFailure: a worker did not end when it was told to, and was killed.
    """
    log_to_stderr(settings.log, one_of_many=True)
    with metrics_endpoint.open_listeners(settings, announce_metrics) as (listener, metrics):
        asyncio.run(_Supervisor(settings, listener, metrics, announce, announce_stop).run())


class _Supervisor:
    """The process above the workers.

    Attributes:
        _workers: the processes that may be there.
        _places: where no worker has served yet; `_complete` once there is no such place.
        _signals: how many told it to stop; `_stopping` from the first one on.
        _killed: processes that did not end in time.
        _at: the last worker of each place.
    """

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        metrics: socket.socket | None,
        announce: Callable[[str], None],
        announce_stop: Callable[[int | None], None] | None,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._at: dict[int, WorkerHandle] = {}
        self._text = settings_to_text(settings)
        self._listener = listener
        self._announce = announce
        self._announce_stop = announce_stop
        self._workers: set[WorkerHandle] = set()
        self._killed: list[int] = []
        self._signals = 0
        self._stopping = asyncio.Event()
        self._places: set[int] = set()
        self._complete = asyncio.Event()

    async def run(self) -> None:
        """Prepare what the workers share, and keep them at work until a signal."""
        with self._heard():
            await _prepare_databases(self._settings)
            try:
                async with self._shown():
                    await self._serve()
            finally:
                await self._leave_none()
        if self._killed:
            raise _kill_error(self._killed)

    def _shown(self) -> AbstractAsyncContextManager[None]:
        """Show the metrics of all workers where that is wanted, while the block lasts."""
        if self._metrics is None:
            return contextlib.nullcontext()
        return metrics_endpoint.serve_metrics(self._metrics, self._gathered)

    async def _gathered(self) -> str:
        return await gather_metrics(
            {place: worker.metrics.ask for place, worker in self._at.items()}
        )

    async def _serve(self) -> None:
        first = [await self._start() for _ in range(self._settings.server.workers)]
        self._at = dict(enumerate(first))
        await asyncio.gather(*(worker.wait_until_ready() for worker in first))
        if not self._signals and not any(worker.is_ready for worker in first):
            raise _start_error(first)
        self._places = set(range(len(first)))
        keeping = asyncio.gather(*map(self._keep, first, range(len(first))))
        try:
            if await self._unless_stopped(self._complete.wait()):
                self._announce(base_url(self._listener))
            await self._unless_stopped(asyncio.shield(keeping))
            await self._say_for_what_it_waits()
            await keeping
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep(self, worker: WorkerHandle, place: int) -> None:
        """See that there is a worker in this place, until a signal."""
        backoff = Backoff()
        while True:
            self._at[place] = worker
            await worker.wait_until_ready()
            if worker.is_ready:
                self._has_served(place)
            await worker.ended()
            self._workers.discard(worker)
            if self._signals:
                self._meet()  # nobody waits for it any more
                return
            pause = backoff.after(worker.served_seconds)
            _log.error("worker process %d %s; another one follows", worker.pid, worker.end)
            replacement = await self._replacement(pause, backoff)
            if replacement is None:
                return
            worker = replacement

    def _has_served(self, place: int) -> None:
        self._places.discard(place)
        if not self._places:
            self._complete.set()

    async def _replacement(self, pause: float, backoff: Backoff) -> WorkerHandle | None:
        """Another worker, after a pause in seconds; None when a signal came first."""
        while True:
            await self._unless_stopped(asyncio.sleep(pause))
            if self._signals:
                return None
            try:
                return await self._start()
            except Unavailable as error:
                _log.error("%s: %s", error.detail, error.cause)
                pause = backoff.after(0)

    async def _start(self) -> WorkerHandle:
        worker = await WorkerHandle.start(self._listener, self._text, self._meet_soon)
        self._workers.add(worker)
        worker.look()  # it may have ended before it was known
        if self._signals:
            worker.stop(at_once=self._signals > 1)
        return worker

    async def _unless_stopped(self, wanted: Awaitable[object]) -> bool:
        """Wait for something, or for a signal; whether it came."""
        task, stopped = asyncio.ensure_future(wanted), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return task.done() and not self._signals
        finally:
            task.cancel()
            stopped.cancel()

    async def _leave_none(self) -> None:
        """Nothing is left but after a failure of this process itself."""
        left = list(self._workers)
        for worker in left:
            worker.kill()
        for worker in left:
            await worker.ended()

    async def _say_for_what_it_waits(self) -> None:
        if self._announce_stop is None:
            return
        asked = [worker.runs_under_way(COUNT_SECONDS) for worker in self._workers]
        counts = await asyncio.gather(*asked)
        known = [count for count in counts if count is not None]
        # Whoever was to read it may be gone, as `tee` is after a Ctrl-C for both.
        with contextlib.suppress(OSError):
            self._announce_stop(sum(known) if len(known) == len(counts) else None)

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers = {
            signal.SIGINT: self._stop,
            signal.SIGTERM: self._stop,
            signal.SIGCHLD: self._look,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _look(self) -> None:
        """A process ended; which one the signal does not say."""
        for worker in self._workers:
            worker.look()

    def _stop(self) -> None:
        self._signals += 1
        first = self._signals == 1
        for worker in self._workers:
            worker.stop(at_once=not first)
        seconds = END_SECONDS + (self._settings.server.drain_seconds if first else 0)
        asyncio.get_running_loop().call_later(seconds, self._kill)
        self._stopping.set()

    def _meet_soon(self) -> None:
        """A worker waits for the others. One that was told to stop from elsewhere may be the first
        of all: the signal for this process is then still to come.
        """
        asyncio.get_running_loop().call_later(SIGNAL_SPREAD_SECONDS, self._meet)

    def _meet(self) -> None:
        """Let those go on that have come as far as all; one that stops by itself, at once."""
        serving = [worker for worker in self._workers if worker.is_ready]
        last = min((worker.steps for worker in serving), default=0)
        for worker in serving:
            worker.let_go(last if self._signals else worker.steps)

    def _kill(self) -> None:
        """The time to end is over."""
        for worker in self._workers:
            _log.error("worker process %d did not end in time and is killed", worker.pid)
            worker.kill()
            self._killed.append(worker.pid)


async def _prepare_databases(settings: Settings) -> None:
    """Refuse here what every worker would refuse as well, and make the databases."""
    from agentctl.auth.verifier import Verifier
    from agentctl.store.databases import Databases

    Verifier(settings)
    databases = Databases(settings, create=True)
    try:
        await databases.open_all()
    finally:
        await databases.close()


def _start_error(first: list[WorkerHandle]) -> AgentctlError:
    """Why none of the first workers serves: what one of them said, else how one ended."""
    said = (worker.failure for worker in first if worker.failure is not None)
    return next(said, InternalError(f"a worker process {first[0].end}"))


def _kill_error(pids: list[int]) -> InternalError:
    processes = ", ".join(str(pid) for pid in pids)
    return InternalError(
        f"worker processes did not end in time and were killed: {processes}",
        hint="what they worked on becomes ERROR with WORKER_LOST at the next start",
    )
