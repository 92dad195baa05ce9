"""Processes that share a database, all in this one: each is a Service, and each can be killed.

What a process does is done by the tasks that were made in its context, by the threads of its
database and by the thread of its beat. `Process.kill` does to it what SIGKILL would: nothing that
is not on the disk yet gets there, none of its tasks is heard again, its lock is free.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from contextvars import ContextVar
from queue import Empty
from typing import Any, TypeVar
from weakref import WeakSet

from agentctl.config.settings import Settings
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.sqlite.database import SqliteDatabase
from tests.service.doors import user

__all__ = ["Process", "by_process"]

T = TypeVar("T")

BEAT_SECONDS = 0.1
"""Shorter than in life, so that one that was taken for dead hears of it soon."""

DEATH_SECONDS = 20.0
"""How long tasks that were cancelled may take to end before a test gives up."""

_here: ContextVar[Process | None] = ContextVar("_here", default=None)


def by_process(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], **more: Any
) -> asyncio.Task[T]:
    """A task factory (`loop.set_task_factory`): a task belongs to the process that made it."""
    task: asyncio.Task[T] = asyncio.Task(coroutine, loop=loop, **more)
    process = _here.get()
    if process is not None:
        process.adopt(task)
    return task


class Process:
    """One process. The loop must have `by_process` as its task factory.

    Attributes:
        alive: until it is killed or has been stopped.
        stopping: whether it was told to end.
        ids: the workers that it has been.
    """

    def __init__(self, settings: Settings) -> None:
        self.alive = True
        self.stopping = False
        self.ids: set[str] = set()
        self._opened_client = False
        self._settings = settings
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._opened: contextlib.AbstractAsyncContextManager[Service] | None = None
        self._service: Service | None = None

    @property
    def service(self) -> Service:
        assert self._service is not None, "it was not started"
        return self._service

    @property
    def port(self) -> ServiceOperations:
        """It, as the one user that there is."""
        return user(self.service)

    @property
    def up(self) -> bool:
        """Whether it can be asked for something: not while it starts, nor while it ends."""
        return self.alive and not self.stopping and self._opened_client

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have the process do something."""
        token = _here.set(self)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            _here.reset(token)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        if not self.alive:
            # A timer or a thread that outlived it: this never runs a step.
            task.cancel()

    async def spawned(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the process do something, and wait for it."""
        return await self.spawn(work)

    def note(self) -> None:
        """Note which worker it is now."""
        if self._service is not None:
            self.ids.add(self._service.hosting.engine.worker_id)

    async def open(self) -> None:
        """Begin as `serve` does. Its sweep ends what dead workers left. A task of its own."""
        opened = Service.open(self._settings, create=True)
        self._service, self._opened = await opened.__aenter__(), opened
        self._service._worker._heartbeat_seconds = BEAT_SECONDS
        self.note()
        await self._service.prepare()
        self._opened_client = True

    async def stop(self) -> None:
        """End well: what it works on is cancelled as a recorded request."""
        self.stopping = True
        await self.spawn(self._close())
        self.alive = False

    async def _close(self) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(None, None, None)

    async def kill(self) -> None:
        """As kill -9: up to the first await nothing of it runs, behind it nothing of it counts."""
        self.note()
        self.alive = False
        if self._service is not None:
            self._die(self._service)
        await self._buried()
        if self._service is not None:
            # For the sake of this process: connections to models. The databases take nothing.
            with contextlib.suppress(asyncio.CancelledError):
                await self._close()
            await self._service.hosting.catalog.close()

    def _die(self, service: Service) -> None:
        worker = service._worker
        worker._ended.set()
        if worker._thread is not None:
            worker._thread.join()
        worker._thread = None
        for database in service.hosting.databases.opened().values():
            assert isinstance(database, SqliteDatabase)
            _sever(database)
        if worker._lock is not None:
            # The kernel closes what was open, and so frees the lock; the file stays.
            worker._lock.release()
        worker._lock = None

    async def _buried(self) -> None:
        """Get rid of the tasks: nobody hears what they still do, and the store takes nothing."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEATH_SECONDS
        while left := [task for task in self._tasks if not task.done()]:
            assert loop.time() < deadline, f"these did not end: {left}"
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.1)
        for task in self._tasks:
            if not task.cancelled():
                task.exception()


def _sever(database: SqliteDatabase) -> None:
    """Close the connections; what waits for the writer is lost, what it is at is done or not."""
    writer = database._writer
    if writer is not None:
        with contextlib.suppress(Empty):
            while (unit := writer._queue.get_nowait()) is not None:
                unit.future.cancel()
    database.close_blocking()
