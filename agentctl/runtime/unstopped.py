"""Work that was told to stop and goes on: nobody waits for it, and it is not hidden either.

Work that cannot be interrupted, kept away from the event loop.

Each call gets a daemon thread of its own: a tool that hangs then holds up neither the calls of
other runs, as it would in a pool, nor the end of the process. How many hanging ones a process may
gather is bounded, though: each keeps its stack and whatever it has open.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = [
    "MAXIMUM_ABANDONED",
    "TooManyAbandonedThreads",
    "UnstoppedWork",
    "abandon_task",
    "count_abandoned_threads",
    "run_in_thread",
    "wait_until_done",
]

_TURNS = 20

_retained: set[asyncio.Future[Any]] = set()
"""What was left, until it has ended: the event loop itself holds tasks by weak references only."""


def abandon_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task for good. One that swallows its cancellation runs on, unheard."""
    if not task.done():
        task.cancel()
        _retain(task)


async def wait_until_done(works: set[asyncio.Future[Any]], seconds: float) -> bool:
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


class UnstoppedWork:
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
            _retain(work)
            work.add_done_callback(self._ended)

    def notify_when_empty(self, listener: Callable[[bool], None]) -> None:
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


def _retain(work: asyncio.Future[Any]) -> None:
    if work not in _retained:
        _retained.add(work)
        work.add_done_callback(_release)


def _release(work: asyncio.Future[Any]) -> None:
    """Let go of work that ended, its exception seen."""
    _retained.discard(work)
    if not work.cancelled():
        work.exception()


_log = logging.getLogger("agentctl.runtime")

T = TypeVar("T")

MAXIMUM_ABANDONED = 64
"""When so many threads that nobody waits for any more are at work in a process, no call is made."""

_LOG_SECONDS = 60.0
"""How often the log says that there are too many."""


class TooManyAbandonedThreads(Exception):
    """`MOST_LEFT` threads were left behind and are still at work, so none was started."""


async def run_in_thread(function: Callable[[], T], name: str, leftovers: UnstoppedWork) -> T:
    """Call `function` in a new thread; raises what it raises.

    When the caller is cancelled the thread runs on, noted in `leftovers` by this name, and what
    it returns is dropped.

    Raises:
        TooManyLeft: the function was not called.
    """
    _abandoned_threads.check(name)
    call = _ThreadCall(function)
    threading.Thread(target=call.work, name=f"tool {name}", daemon=True).start()
    try:
        value, error = await asyncio.shield(call.answer)
    except asyncio.CancelledError:
        call.leave()
        leftovers.add(call.answer, name)
        raise
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # no error: it is what the function returned


class _ThreadCall(Generic[T]):
    """A function in a thread.

    Attributes:
        answer: what it returned and what it raised; never done when its loop was closed before.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._left = False
        self.answer: asyncio.Future[tuple[T | None, BaseException | None]]
        self.answer = self._loop.create_future()

    def work(self) -> None:
        """What the thread does."""
        try:
            outcome: tuple[Any, BaseException | None]
            outcome = (self._context.run(self._function), None)
        except BaseException as error:
            outcome = (None, error)
        with _abandoned_threads.lock:
            self._ended = True
            _abandoned_threads.left -= self._left
        try:
            self._loop.call_soon_threadsafe(self.answer.set_result, outcome)
        except RuntimeError:
            # The loop was closed while the tool ran: there is nobody left to tell.
            return

    def leave(self) -> None:
        """Nobody waits for it any more."""
        with _abandoned_threads.lock:
            self._left = not self._ended
            _abandoned_threads.left += self._left


class _AbandonedThreads:
    """How many threads of this process were left behind and have not ended."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.left = 0
        self._logged = -_LOG_SECONDS

    def check(self, name: str) -> None:
        """Raises TooManyLeft when there may be no more."""
        if self.left < MAXIMUM_ABANDONED:
            return
        now = time.monotonic()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            _log.error(
                "the tool %s was not called: %d calls of tools did not end when they were told to "
                "and are still at work in this process",
                name,
                self.left,
            )
        raise TooManyAbandonedThreads


_abandoned_threads = _AbandonedThreads()


def count_abandoned_threads() -> int:
    """How many threads of this process nobody waits for any more, and are still at work."""
    return _abandoned_threads.left
