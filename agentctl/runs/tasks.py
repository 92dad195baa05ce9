"""Tasks that belong to somebody who knows when they are all done.

Waiting for a database that is away for a while, where giving up would end a run for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from agentctl import errors

__all__ = ["RETRY_LIMIT_SECONDS", "Tasks", "retry_while_unavailable"]

T = TypeVar("T")


class Tasks:
    """A group of tasks. Each is held until it is done: the loop has only a weak reference."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as a task of the group. Nobody needs to wait for it: a failure is not lost
        on the loop's handler as never retrieved, so `work` logs its own.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def done(self, seconds: float) -> None:
        """Wait until the group is empty, for up to `seconds`; its tasks may start further ones."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._tasks and (left := deadline - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    async def end(self) -> None:
        """Cancel what is left, and wait for its end. For what ends when it is cancelled."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)


RETRY_LIMIT_SECONDS = 30.0
"""How long a run waits at most for the database that it needs to go on."""

RETRY_PAUSE_SECONDS = 0.25


async def retry_while_unavailable(
    attempt: Callable[[], Awaitable[T]],
    *,
    stopped: asyncio.Future[None],
    seconds: float = RETRY_LIMIT_SECONDS,
) -> T:
    """What `attempt` returns, once the database is there.

    Args:
        attempt: tries it; the same again must do no harm.
        stopped: done when nobody wants it any more.
        seconds: when to give up.

    Raises:
        Unavailable: it did not come back in time, or nobody waits for it any more.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while True:
        try:
            return await attempt()
        except errors.Unavailable:
            if stopped.done() or clock() >= deadline:
                raise
        await asyncio.wait({stopped}, timeout=RETRY_PAUSE_SECONDS)
