"""Simulated processes that share a database: each is a Service, and each can be killed.

A simulated process consists of the tasks that were created in its context, the threads of its
database and its heartbeat thread. `Process.kill` has the effects of SIGKILL: data that is not on
the disk yet is lost, its tasks have no further effect, and its lock is free.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakSet

from agentctl.config.settings import Settings
from agentctl.service.service import Service, ServiceOperations
from tests.kit.conditions import PATIENCE
from tests.kit.deaths import kill_service
from tests.kit.service import user

__all__ = ["Process", "TaskOwner", "create_process_task"]

T = TypeVar("T")

HEARTBEAT_SECONDS = 0.1
"""Shorter than in production, so that a worker soon detects that it was declared dead."""

_here: ContextVar[Process | None] = ContextVar("_here", default=None)


def create_process_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], **more: Any
) -> asyncio.Task[T]:
    """Create a task that belongs to the current process (`loop.set_task_factory`)."""
    task: asyncio.Task[T] = asyncio.Task(coroutine, loop=loop, **more)
    process = _here.get()
    if process is not None:
        process.adopt(task)
    return task


class TaskOwner:
    """The tasks that were created in the context of a server, which a test can kill.

    Args:
        current: the variable with the owner of the tasks that are created.

    Attributes:
        alive: True until it is killed or has been stopped.
    """

    def __init__(self, current: ContextVar[Any]) -> None:
        self.alive = True
        self._current = current
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this owner."""
        token = self._current.set(self)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            self._current.reset(token)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        if not self.alive:
            # Created by a timer or thread after the kill: this task never runs a step.
            task.cancel()

    async def cancel_tasks(self) -> None:
        """Cancel the tasks until they end: they have no effect, and the store accepts nothing."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while left := [task for task in self._tasks if not task.done()]:
            assert loop.time() < deadline, f"these did not end: {left}"
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.1)
        for task in self._tasks:
            if not task.cancelled():
                task.exception()


class Process(TaskOwner):
    """One process. The loop must have `create_process_task` as its task factory.

    Attributes:
        stopping: True after the request to stop.
        ids: all of its worker ids so far.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(_here)
        self.stopping = False
        self.ids: set[str] = set()
        self._opened_client = False
        self._settings = settings
        self._opened: contextlib.AbstractAsyncContextManager[Service] | None = None
        self._service: Service | None = None

    @property
    def service(self) -> Service:
        assert self._service is not None, "it was not started"
        return self._service

    @property
    def operations(self) -> ServiceOperations:
        """Its operations, as the only user of the tests."""
        return user(self.service)

    @property
    def up(self) -> bool:
        """True if it accepts calls: not while it starts or stops."""
        return self.alive and not self.stopping and self._opened_client

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a task of the process and wait for it."""
        return await self.spawn(work)

    def note_worker_id(self) -> None:
        """Add its current worker id to `ids`."""
        if self._service is not None:
            self.ids.add(self._service.hosting.engine.worker_id)

    async def open(self) -> None:
        """Start like `serve`, with a sweep for dead workers. Runs in a separate task."""
        opened = Service.open(self._settings, create=True)
        self._service = await opened.__aenter__()
        self._opened = opened
        self._service._worker._heartbeat_seconds = HEARTBEAT_SECONDS
        self.note_worker_id()
        await self._service.prepare()
        self._opened_client = True

    async def stop(self) -> None:
        """Shut down: its runs are cancelled with a recorded request."""
        self.stopping = True
        await self.spawn(self._close())
        self.alive = False

    async def _close(self) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(None, None, None)

    async def kill(self) -> None:
        """Kill the process. Its tasks do not run until the first await, and no effect later."""
        self.note_worker_id()
        self.alive = False
        if self._service is not None:
            kill_service(self._service, with_queued_writes=False)
        await self.cancel_tasks()
        if self._service is not None:
            # Free the model connections of the test process; the databases accept nothing any more.
            with contextlib.suppress(asyncio.CancelledError):
                await self._close()
            await self._service.hosting.catalog.close()
