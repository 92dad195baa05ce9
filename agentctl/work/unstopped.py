"""Work that continues after it was cancelled, and threads for work that cannot be cancelled.

The engine does not wait for such work, but records that it continues and when it ends: the
names, because an operator has to know which tool to look at (docs/cancellation.md "What can hang").

Synchronous functions are called in daemon threads: a tool in its own thread (`run_in_thread`), and
the functions of the library of an agent, which uses the executor of the event loop
(`RunThreadExecutor`), in the threads of the run. A function that hangs then delays neither the
calls of other runs, as it would in a pool, nor the exit of the process. The number of abandoned
threads is limited, because each keeps its stack and all that it has open.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary

from agentctl.work.event_loop import abandoned_threads, retrieve_exception
from agentctl.work.run_scope import current_call, current_threads

T = TypeVar("T")
P = ParamSpec("P")

MAXIMUM_THREADS = 32
"""Threads that the library of a run has at the same time, at most.

As many as the executor of asyncio has. The event loop shares the interpreter with all of them.
"""

WATCH_SECONDS = 1.0
"""Time in which one of these threads has to become free; otherwise the run gets more."""

RUNNER = "runner"
"""Name of unstopped work that is not a tool: the code or the library of an agent."""

_retained: set[asyncio.Future[Any]] = set()
"""Abandoned work that has not ended: the event loop itself has only weak references to tasks."""

_executors: WeakKeyDictionary[asyncio.AbstractEventLoop, RunThreadExecutor] = WeakKeyDictionary()


def abandon_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task without waiting for it. If it ignores that, it continues without effect."""
    if not task.done():
        task.cancel()
        _retain(task)


class StartedByCode(Protocol):
    """The work that the code of a run has started (`work.started_work`)."""

    async def end(self, *, cancel: bool) -> None: ...


class UnstoppedWork:
    """Work of one run that still executes after its end. Belongs to one event loop.

    These are threads of tools, which cannot be interrupted, tasks that ignore their cancellation,
    and the work that the code of a completed run has left.
    """

    started: StartedByCode | None
    """The work that the code of the run has started; None without such code."""

    has_ended: bool
    """True once the listener of `notify_when_empty` was called."""

    had_work: bool
    """True once work was added, which may have ended since."""

    def __init__(self) -> None:
        self.started = None
        self.has_ended = False
        self.had_work = False
        # The names of the work that has not ended.
        self._works: dict[asyncio.Future[Any], str] = {}
        self._without_result: set[asyncio.Future[Any]] = set()
        self._had_late_result = False
        self._parent: UnstoppedWork | None = None
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

    async def end_started(self, *, cancel: bool) -> None:
        """Cancel, or leave, the work that the code of the run has started, and add the rest."""
        if self.started is not None:
            await self.started.end(cancel=cancel)

    def add(
        self, work: asyncio.Future[Any], name: str = RUNNER, *, has_result: bool = True
    ) -> None:
        """Add work that continues after the end of the run; do nothing if it has ended.

        Args:
            work: a task, or a future that is done when its thread has ended.
            name: name of the tool, which the run record shows.
            has_result: True if its result comes late, and is dropped.
        """
        if work.done() or work in self._works:
            return

        self._works[work] = name
        self.had_work = True
        if not has_result:
            self._without_result.add(work)

        _retain(work)
        work.add_done_callback(self._on_done)
        self._report_change()

        if self._parent is not None:
            self._parent.add(work, name, has_result=has_result)

    def add_all(self, other: UnstoppedWork) -> None:
        """Add the work of the run of a member, and all that is added to it later."""
        other._parent = self
        self.add_present(other)

    def add_present(self, other: UnstoppedWork) -> None:
        """Add the work of the run in which a library executes this run, as far as it is known."""
        for work, name in list(other._works.items()):
            self.add(work, name, has_result=work not in other._without_result)

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
        if not work.cancelled() and work not in self._without_result:
            self._had_late_result = True
        self._without_result.discard(work)

        if not self._works:
            self._notify()
        elif self.pending:
            self._report_change()

    def _report_change(self) -> None:
        if self._on_change is not None:
            self._on_change()

    def _notify(self) -> None:
        listener = self._listener
        self._listener = None
        if listener is not None:
            self.has_ended = True
            self._on_change = None
            listener(self._had_late_result)


def _retain(work: asyncio.Future[Any]) -> None:
    if work not in _retained:
        _retained.add(work)
        work.add_done_callback(_release)


def _release(work: asyncio.Future[Any]) -> None:
    _retained.discard(work)
    retrieve_exception(work)


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
        unstopped_name: name in `unstopped`; None for `name`.

    Raises:
        TooManyAbandonedThreads: the function was not called.
    """
    abandoned_threads.check(name)

    call: Future[T] = Future()
    # A running future cannot be cancelled: it is done when its thread has ended.
    call.set_running_or_notify_cancel()
    work = partial(contextvars.copy_context().run, function)
    threading.Thread(target=_execute, args=(call, work), name=f"tool {name}", daemon=True).start()

    outcome = asyncio.wrap_future(call)
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        abandoned_threads.add(call)
        unstopped.add(outcome, unstopped_name or name)
        raise


class RunThreadExecutor(ThreadPoolExecutor):
    """An executor that makes the calls for a run in its daemon threads; other calls use a pool."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in a thread.

        Raises:
            TooManyAbandonedThreads: too many abandoned threads still run; nothing was called.
        """
        threads = current_threads.get()
        if threads is None:
            return super().submit(fn, *args, **kwargs)
        return threads.start(partial(fn, *args, **kwargs))


def install_executor() -> RunThreadExecutor:
    """Return the default executor of the running event loop, after replacing any other executor."""
    loop = asyncio.get_running_loop()
    if loop not in _executors:
        _executors[loop] = RunThreadExecutor(thread_name_prefix="asyncio")
        loop.set_default_executor(_executors[loop])
    return _executors[loop]


class RunThreads:
    """The threads that a block of one run uses (decision 145).

    Calls that still run at its end are registered.

    Calls beyond `MAXIMUM_THREADS` wait for a thread. They are cancelled if the block ends by an
    exception. All threads may wait for one of these calls: for the response of a model, for which
    the event loop calls a function in a thread. So their number doubles while none becomes free.

    Args:
        unstopped: the unstopped work of the run.
    """

    def __init__(self, unstopped: UnstoppedWork) -> None:
        self._unstopped = unstopped
        # The names of the calls that have not ended.
        self._calls: dict[Future[Any], str] = {}
        self._loop = asyncio.get_running_loop()

        # The following is changed under the lock, by the event loop and by the threads.
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads = 0
        self._limit = MAXIMUM_THREADS
        # The calls that a thread has taken since the last look of `_watch`.
        self._taken = 0
        # True while a start of a thread is scheduled or under way.
        self._starting = False
        # True while a call of `_watch` is scheduled.
        self._is_watched = False
        self._ended = False

    def __enter__(self) -> None:
        self._token = current_threads.set(self)

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        current_threads.reset(self._token)
        with self._lock:
            self._ended = True
            if error is not None:
                for call, _function in self._waiting:
                    call.cancel()
            calls = list(self._calls.items())
            for call, _name in calls:
                if call.running():
                    abandoned_threads.add(call)

        for call, name in calls:
            self._register(call, name)

    def start(self, function: Callable[[], T]) -> Future[T]:
        """Call a function in a thread of the run. Called in any thread.

        Raises:
            TooManyAbandonedThreads: too many abandoned threads still run; nothing was called.
        """
        abandoned_threads.check("with a thread")

        call: Future[T] = Future()
        tool_call = current_call.get()
        name = RUNNER if tool_call is None else tool_call.name
        self._calls[call] = name
        call.add_done_callback(lambda done: self._calls.pop(done, None))
        if self._ended:
            self._register(call, name)

        with self._lock:
            self._waiting.append((call, partial(contextvars.copy_context().run, function)))
            is_first = not self._starting
            self._starting = True
            is_full = not self._is_watched and self._threads + len(self._waiting) > self._limit
            self._is_watched = self._is_watched or is_full

        if is_first:
            self._loop.call_soon_threadsafe(self._start_thread)
        if is_full:
            self._loop.call_soon_threadsafe(self._loop.call_later, WATCH_SECONDS, self._watch)

        return call

    def _watch(self) -> None:
        """Let the run have more threads if calls wait and none of its threads has become free."""
        with self._lock:
            self._is_watched = bool(self._waiting)
            if self._waiting and not self._taken:
                self._limit *= 2
            self._taken = 0

        if self._is_watched:
            self._start_thread()
            self._loop.call_later(WATCH_SECONDS, self._watch)

    def _start_thread(self) -> None:
        """Start a thread if a call waits for one.

        The new thread starts the next one, because a start waits until the thread runs: the event
        loop would wait for the threads of all calls that an agent makes in one turn.
        """
        with self._lock:
            self._starting = bool(self._waiting) and self._threads < self._limit
            if not self._starting:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._work, name="agent", daemon=True).start()
        except RuntimeError as error:
            self._lose_thread(error)

    def _lose_thread(self, error: RuntimeError) -> None:
        """Fail the waiting calls if the run has no thread that will make them."""
        with self._lock:
            self._threads -= 1
            self._starting = False
            if self._threads:
                return
            lost_calls = self._waiting
            self._waiting = deque()

        for call, _function in lost_calls:
            if call.set_running_or_notify_cancel():
                call.set_exception(error)

    def _register(self, call: Future[Any], name: str) -> None:
        self._unstopped.add(asyncio.wrap_future(call, loop=self._loop), name)

    def _work(self) -> None:
        """Execute waiting calls, in a new thread, until there are none."""
        next_call = self._take()
        self._start_thread()

        while next_call:
            _execute(*next_call)
            next_call = self._take()

    def _take(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Return the next call for a thread; None if the thread has to end."""
        with self._lock:
            while self._waiting:
                call, function = self._waiting.popleft()
                if call.set_running_or_notify_cancel():
                    self._taken += 1
                    if self._ended:
                        abandoned_threads.add(call)
                    return call, function
            self._threads -= 1
            return None


def _execute(call: Future[T], function: Callable[[], T]) -> None:
    """Call a function, and store its result or its exception."""
    try:
        result = function()
    except StopIteration as error:
        # A future of asyncio does not accept it, and its waiter would never continue.
        failure = RuntimeError("a function in a thread raised StopIteration")
        failure.__cause__ = error
        call.set_exception(failure)
    except BaseException as error:
        call.set_exception(error)
    else:
        call.set_result(result)
