"""Task groups with a bounded wait, and retries while a database is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import chain, repeat
from typing import Any, TypeVar

from agentctl import errors
from agentctl.work.event_loop import retrieve_exception

T = TypeVar("T")

RETRY_LIMIT_SECONDS = 30.0
"""Maximum time that a run waits for a database that it needs to continue."""

RETRY_PAUSES = (0.25,)
"""Seconds between two attempts; the last number repeats."""


class Tasks:
    """A group of tasks with references to them: the event loop itself has only weak references."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` as a task of the group.

        The task need not be awaited. Its exception is retrieved here, so `work` logs its failures.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(retrieve_exception)
        return task

    async def wait_until_empty(self, seconds: float) -> None:
        """Wait until the group is empty, for at most `seconds`; its tasks may start more tasks."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._tasks and (left := deadline - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    async def cancel_all(self) -> None:
        """Cancel all tasks and wait until they are done. Only for tasks that do end on a cancel."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)


async def retry_while_unavailable(
    attempt: Callable[[], Awaitable[T]],
    *,
    stopped: asyncio.Future[None] | None = None,
    seconds: float | None = None,
    pauses: Sequence[float] = RETRY_PAUSES,
    on_unavailable: Callable[[], None] | None = None,
) -> T:
    """Retry `attempt` until the database answers, and return its result.

    Args:
        attempt: the action; a repetition must have no further effect.
        stopped: done when the result is no longer needed; None if it is needed in any case.
        seconds: time after which no further attempt is made; None for `RETRY_LIMIT_SECONDS`.
        pauses: seconds between two attempts; the last number repeats.
        on_unavailable: called after each attempt that is repeated.

    Raises:
        Unavailable: the database did not answer for `seconds`, or `stopped` is done.
    """
    clock = asyncio.get_running_loop().time
    limit = RETRY_LIMIT_SECONDS if seconds is None else seconds
    deadline, waits = clock() + limit, chain(pauses, repeat(pauses[-1]))
    while True:
        try:
            return await attempt()
        except errors.Unavailable:
            if (stopped is not None and stopped.done()) or clock() >= deadline:
                raise
        if on_unavailable is not None:
            on_unavailable()
        if stopped is None:
            await asyncio.sleep(next(waits))
        else:
            await asyncio.wait({stopped}, timeout=next(waits))


async def read_after_change(attempt: Callable[[], Awaitable[T]], run_id: str) -> T:
    """Retry a read of a run that a request has started or continued (`retry_while_unavailable`).

    Raises:
        OutcomeUnknown: the database did not answer.
    """
    try:
        return await retry_while_unavailable(attempt)
    except errors.Unavailable as error:
        raise build_unread_outcome(run_id, error) from error


def build_unread_outcome(run_id: str, error: errors.Unavailable) -> errors.OutcomeUnknown:
    """Build the error of a request that was executed, although its run cannot be read."""
    unread = errors.OutcomeUnknown(
        "The request was executed, but its run cannot be read now",
        cause=error.cause or error.detail,
        hint="read the run before you repeat the request",
    )
    unread.run_id = run_id
    return unread
