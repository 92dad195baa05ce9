"""Work that was told to stop and goes on: nobody waits for it, and it is not hidden either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

__all__ = ["Leftovers", "ended", "leave"]

_TURNS = 20

_held: set[asyncio.Future[Any]] = set()
"""What was left, until it has ended: the event loop itself holds tasks by weak references only."""


def leave(task: asyncio.Task[Any]) -> None:
    """Cancel a task for good. One that swallows its cancellation runs on, unheard."""
    if not task.done():
        task.cancel()
        _hold(task)


async def ended(works: set[asyncio.Future[Any]], seconds: float) -> bool:
    """Wait for work that was told to stop; whether all of it has ended.

    Args:
        seconds: how long at most, on a loop that is idle otherwise. A busy one takes longer to
            come round, to the work as well: it is given `_TURNS` turns in any case.
    """
    for _ in range(_TURNS):
        _, pending = await asyncio.wait(works, timeout=seconds / _TURNS)
        if not pending:
            return True
    return False


class Leftovers:
    """What a run left behind, still at work: threads of tools that cannot be interrupted, and
    tasks that swallow their cancellation. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._left: dict[asyncio.Future[Any], str] = {}
        self._late = False
        self._listener: Callable[[bool], None] | None = None

    @property
    def pending(self) -> bool:
        """Whether anything that was left is still at work."""
        return any(not work.done() for work in self._left)

    @property
    def names(self) -> list[str]:
        """Names of what is still at work, in the order in which it was left."""
        return [name for work, name in self._left.items() if not work.done()]

    def add(self, work: asyncio.Future[Any], name: str = "work") -> None:
        """Note that `work` was told to stop and has not; nothing happens when it is done already.

        Args:
            work: a task, or a future that is done when its thread has ended.
            name: what it is, for the log.
        """
        if not work.done() and work not in self._left:
            self._left[work] = name
            _hold(work)
            work.add_done_callback(self._ended)

    def on_empty(self, listener: Callable[[bool], None]) -> None:
        """Have `listener` called on the event loop, once, when nothing is left any more.

        It is called soon when that is so already. What it is told: whether any of the work had a
        result after it was left, be it a value or a failure, which was dropped; work that ended
        as cancelled had none.
        """
        self._listener = listener
        if not self._left:
            asyncio.get_running_loop().call_soon(self._tell)

    def _ended(self, work: asyncio.Future[Any]) -> None:
        del self._left[work]
        self._late = self._late or not work.cancelled()
        if not self._left:
            self._tell()

    def _tell(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener(self._late)


def _hold(work: asyncio.Future[Any]) -> None:
    if work not in _held:
        _held.add(work)
        work.add_done_callback(_forget)


def _forget(work: asyncio.Future[Any]) -> None:
    """Let go of work that ended, its exception seen."""
    _held.discard(work)
    if not work.cancelled():
        work.exception()
