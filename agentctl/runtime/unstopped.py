"""Work that continues after it was cancelled, and threads for work that cannot be cancelled.

The engine does not wait for such work, but records that it continues and when it ends.

Each call of a synchronous tool gets its own daemon thread. A tool that hangs then delays neither
the calls of other runs, as it would in a pool, nor the exit of the process. The number of
abandoned threads is limited, because each keeps its stack and all that it has open.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from agentctl.event_loop import abandoned_threads

T = TypeVar("T")

RUNNER = "runner"
"""Name of unstopped work that is not a tool: the code or the library of an agent."""

_retained: set[asyncio.Future[Any]] = set()
"""Abandoned work that has not ended: the event loop itself has only weak references to tasks."""


def abandon_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task without waiting for it. If it ignores that, it continues without effect."""
    if not task.done():
        task.cancel()
        _retain(task)


class UnstoppedWork:
    """Abandoned work of one run that still executes. Belongs to one event loop.

    These are threads of tools, which cannot be interrupted, and tasks that ignore their
    cancellation.
    """

    def __init__(self) -> None:
        self._works: dict[asyncio.Future[Any], str] = {}
        self._late = False
        self._listener: Callable[[bool], None] | None = None
        self._on_change: Callable[[], None] | None = None

    @property
    def pending(self) -> bool:
        """True if some of the work still executes."""
        return any(not work.done() for work in self._works)

    @property
    def names(self) -> list[str]:
        """Names of the work that still executes, each once, in the order of its abandonment."""
        return list(dict.fromkeys(name for work, name in self._works.items() if not work.done()))

    def add(self, work: asyncio.Future[Any], name: str = RUNNER) -> None:
        """Add work that was cancelled and has not ended; do nothing if it has.

        Args:
            work: a task, or a future that is done when its thread has ended.
            name: name of the tool, which the run record shows.
        """
        if not work.done() and work not in self._works:
            self._works[work] = name
            _retain(work)
            work.add_done_callback(self._on_done)
            self._report_change()

    def add_all(self, other: UnstoppedWork) -> None:
        """Add the work of another run, such as that of a member."""
        for work, name in list(other._works.items()):
            self.add(work, name)

    def notify_changes(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the event loop when `names` may have changed and is not empty."""
        self._on_change = listener

    def notify_when_empty(self, listener: Callable[[bool], None]) -> None:
        """Call `listener` once on the event loop when all of the work has ended.

        If it has ended already, the call is scheduled at once. The argument is True if some work
        had a late result, a value or an exception, which was dropped. Work that ended as cancelled
        has no result.
        """
        self._listener = listener
        if not self._works:
            asyncio.get_running_loop().call_soon(self._notify)

    def _on_done(self, work: asyncio.Future[Any]) -> None:
        del self._works[work]
        self._late = self._late or not work.cancelled()
        if not self._works:
            self._notify()
        elif self.pending:
            self._report_change()

    def _report_change(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _notify(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener(self._late)


def _retain(work: asyncio.Future[Any]) -> None:
    if work not in _retained:
        _retained.add(work)
        work.add_done_callback(_release)


def _release(work: asyncio.Future[Any]) -> None:
    _retained.discard(work)
    if not work.cancelled():
        work.exception()


async def run_in_thread(
    function: Callable[[], T],
    name: str,
    unstopped: UnstoppedWork,
    *,
    unstopped_name: str | None = None,
) -> T:
    """Call `function` in a new thread; raise the exceptions that it raises.

    If the caller is cancelled, the thread continues, is added to `unstopped`, and its result is
    dropped.

    Args:
        name: name for the log and of the thread.
        unstopped_name: name in `unstopped`; None for the same.

    Raises:
        TooManyAbandonedThreads: the function was not called.
    """
    abandoned_threads.check(name)
    call = _ThreadCall(function)
    threading.Thread(target=call.execute, name=f"tool {name}", daemon=True).start()
    try:
        value, error = await asyncio.shield(call.outcome)
    except asyncio.CancelledError:
        call.abandon()
        unstopped.add(call.outcome, unstopped_name or name)
        raise
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error it is the result


class _ThreadCall(Generic[T]):
    """A function call in a thread.

    Attributes:
        outcome: the result and the exception; never done if the event loop is closed before.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._abandoned = False
        self.outcome: asyncio.Future[tuple[T | None, BaseException | None]]
        self.outcome = self._loop.create_future()

    def execute(self) -> None:
        """Call the function and deliver its outcome to the event loop. Runs in the thread."""
        try:
            outcome: tuple[Any, BaseException | None]
            outcome = (self._context.run(self._function), None)
        except BaseException as error:
            outcome = (None, error)
        with abandoned_threads.lock:
            self._ended = True
            abandoned_threads.count -= self._abandoned
        try:
            self._loop.call_soon_threadsafe(self.outcome.set_result, outcome)
        except RuntimeError:
            # The event loop was closed while the tool ran: no one needs the outcome.
            return

    def abandon(self) -> None:
        """Count the thread as abandoned, unless it has ended."""
        with abandoned_threads.lock:
            self._abandoned = not self._ended
            abandoned_threads.count += self._abandoned
