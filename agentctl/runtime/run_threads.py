"""Threads that the library of an agent starts while it works for a run.

Libraries call synchronous functions in the executor of the event loop (`asyncio.to_thread`) or in
one that they are given. A cancelled caller does not wait for such a thread. Without this module the
run would count as stopped while the thread works, and a thread that hangs would take a place of the
shared pool and delay the exit of the process. So every call for a run gets a separate daemon
thread, which the run knows.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from agentctl.event_loop import abandoned_threads
from agentctl.runtime.spans import current_call
from agentctl.runtime.unstopped import RUNNER, UnstoppedWork

T = TypeVar("T")
P = ParamSpec("P")

_current: contextvars.ContextVar[_RunThreads | None] = contextvars.ContextVar(
    "run_threads", default=None
)


class RunThreadExecutor(ThreadPoolExecutor):
    """An executor that gives each call for a run its own daemon thread; other calls use a pool."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function in a thread.

        Raises:
            TooManyAbandonedThreads: too many abandoned threads still run; nothing was called.
        """
        threads = _current.get()
        if threads is None:
            return super().submit(fn, *args, **kwargs)
        return threads.start(partial(fn, *args, **kwargs))


_executors: WeakKeyDictionary[asyncio.AbstractEventLoop, RunThreadExecutor] = WeakKeyDictionary()


def install_executor() -> RunThreadExecutor:
    """Return the default executor of the running event loop; replace another one first."""
    loop = asyncio.get_running_loop()
    if loop not in _executors:
        _executors[loop] = RunThreadExecutor(thread_name_prefix="asyncio")
        loop.set_default_executor(_executors[loop])
    return _executors[loop]


@contextmanager
def watch_threads(unstopped: UnstoppedWork) -> Iterator[None]:
    """Register the threads that the block started and that still run at its end.

    Args:
        unstopped: the unstopped work of the run.
    """
    threads = _RunThreads(unstopped)
    token = _current.set(threads)
    try:
        yield
    finally:
        _current.reset(token)
        threads.abandon()


@contextmanager
def use_shared_threads() -> Iterator[None]:
    """Call functions of the block in the pool: they are work of the server, not of the run.

    So they are called also while too many abandoned threads still run.
    """
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


class _RunThreads:
    """The threads of one run."""

    def __init__(self, unstopped: UnstoppedWork) -> None:
        self._unstopped = unstopped
        self._calls: dict[Future[Any], str] = {}
        self._loop = asyncio.get_running_loop()
        self._ended = False

    def start(self, function: Callable[[], T]) -> Future[T]:
        abandoned_threads.check("with a thread")
        call: Future[T] = Future()
        # A running future cannot be cancelled: it is done when its thread has ended.
        call.set_running_or_notify_cancel()
        tool = current_call.get()
        self._calls[call] = tool.name if tool is not None else RUNNER
        call.add_done_callback(lambda done: self._calls.pop(done, None))
        threading.Thread(target=_execute, args=(call, function), name="agent", daemon=True).start()
        if self._ended:
            self.abandon()
        return call

    def abandon(self) -> None:
        self._ended = True
        for call, name in list(self._calls.items()):
            abandoned_threads.add(call)
            self._unstopped.add(asyncio.wrap_future(call, loop=self._loop), name)


def _execute(call: Future[T], function: Callable[[], T]) -> None:
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
