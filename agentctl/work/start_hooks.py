"""Hooks that see what the code of a run starts, and add it to the work of the run.

In the code of the server, `work.run_scope.current_scope` is None, so that a task costs one read of
a variable.

- Tasks are seen by the task factory of the event loop.
- Calls in executors are seen by the method `run_in_executor` of the loop (`work.event_loop`) and by
  `submit` of the pool, and calls in threads of AnyIO by the function of its backend. The threads of
  pools belong to no run: each executes the calls of many.
- Other threads and processes are seen by an audit hook (PEP 578), and forks by
  `os.register_at_fork`. Both execute in the thread and context that start them. Python 3.11 has no
  event for threads: there `threading.Thread.start` is wrapped.
"""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import Any, cast

from anyio._backends._asyncio import AsyncIOBackend

from agentctl.work import child_processes, origins
from agentctl.work.run_scope import current_scope, outside_run

_REPORTS_THREADS = sys.version_info >= (3, 12)
"""True if Python has an audit event for the start of a thread."""

_THREAD_EVENTS = ("_thread.start_new_thread", "_thread.start_joinable_thread")


class _TaskFactory:
    """The task factory of an event loop. It calls the factory that was there before, if any."""

    def __init__(self, previous: Any) -> None:
        self._create = previous or (
            lambda loop, work, **options: asyncio.Task(work, loop=loop, **options)
        )

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
        scope = current_scope.get()
        if scope is None:
            return self._create(loop, work, **options)

        if origins.is_shared(sys._getframe(1)):
            with outside_run():
                return self._create(loop, work, **options)

        context = options.get("context")
        if context is not None and context.get(current_scope) is None:
            # A new context would hide the tasks of this task.
            context.run(current_scope.set, scope)

        task = self._create(loop, work, **options)
        scope.add_task(task)
        return task


class _Forks(threading.local):
    """The child processes of a thread before it forks."""

    earlier: frozenset[int] = frozenset()


_forks = _Forks()
_installed = False
_wrapped: weakref.WeakSet[type[Executor]] = weakref.WeakSet()
"""The kinds of pools whose calls are seen."""


def install() -> None:
    """Install the task factory of the running event loop and the hooks of the process, once."""
    global _installed

    loop = asyncio.get_running_loop()
    factory = loop.get_task_factory()
    if not isinstance(factory, _TaskFactory):
        loop.set_task_factory(_TaskFactory(factory))

    if not _installed:
        _installed = True
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
        sys.addaudithook(_audit)
        _wrap_anyio()
        if not _REPORTS_THREADS:
            _wrap_thread_start()

    # Some pools are imported after the first installation.
    for pool in Executor.__subclasses__():
        if pool not in _wrapped:
            _wrapped.add(pool)
            _wrap_submit(pool)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        scope = current_scope.get()
        process = sys._getframe(1).f_locals.get("self") if scope is not None else None
        if scope is not None and isinstance(process, subprocess.Popen):
            scope.add_process(weakref.ref(process))
    elif event in _THREAD_EVENTS and current_scope.get() is not None:
        thread = getattr(arguments[0], "__self__", None)
        if isinstance(thread, threading.Thread):
            _add_thread(thread, sys._getframe(1))


def _wrap_submit(pool: type[Executor]) -> None:
    submit: Any = pool.submit

    @functools.wraps(submit)
    def submit_in_run(
        self: Executor, function: Callable[..., Any], /, *arguments: Any, **options: Any
    ) -> Future[Any]:
        scope = current_scope.get()
        if scope is None or origins.is_shared(sys._getframe(1)):
            return cast("Future[Any]", submit(self, function, *arguments, **options))

        if isinstance(self, ThreadPoolExecutor):
            # What the function starts belongs to the run, too.
            function = partial(_execute_in, scope, function)

        call: Future[Any] = submit(self, function, *arguments, **options)
        if isinstance(call, Future):
            scope.add_call(call)

        return call

    pool.submit = submit_in_run  # type: ignore[method-assign]


def _execute_in(scope: Any, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    token = current_scope.set(scope)
    try:
        return function(*arguments, **options)
    finally:
        current_scope.reset(token)


def _wrap_anyio() -> None:
    run: Any = AsyncIOBackend.run_sync_in_worker_thread

    @functools.wraps(run)
    async def run_in_run(
        function: Callable[..., Any], arguments: tuple[Any, ...], **options: Any
    ) -> Any:
        scope = current_scope.get()
        if scope is None:
            return await run(function, arguments, **options)

        call: Future[None] = Future()
        scope.add_call(call)
        try:
            return await run(partial(_execute, call, function), arguments, **options)
        finally:
            # Only a call that waits for its turn is cancelled.
            call.cancel()

    AsyncIOBackend.run_sync_in_worker_thread = staticmethod(run_in_run)  # type: ignore[assignment]


def _execute(call: Future[None], function: Callable[..., Any], *arguments: Any) -> Any:
    if not call.set_running_or_notify_cancel():
        raise CancelledError
    try:
        return function(*arguments)
    finally:
        call.set_result(None)


def _wrap_thread_start() -> None:
    start = threading.Thread.start

    @functools.wraps(start)
    def start_in_run(thread: threading.Thread) -> None:
        if current_scope.get() is not None:
            _add_thread(thread, sys._getframe(1))
        start(thread)

    threading.Thread.start = start_in_run  # type: ignore[assignment, method-assign]


def _add_thread(thread: threading.Thread, frame: FrameType) -> None:
    scope = current_scope.get()
    if scope is None or origins.is_pool_thread(thread):
        return
    if not origins.is_started_by_library(thread, frame):
        scope.add_thread(thread)


def _before_fork() -> None:
    if current_scope.get() is not None:
        started = child_processes.find_started_by_thread()
        _forks.earlier = frozenset(process.pid for process in started)


def _after_fork() -> None:
    """Add the new process: `os.fork`, `multiprocessing`, and asyncio on uvloop end here."""
    scope = current_scope.get()
    if scope is not None and not origins.is_pool_process(sys._getframe(1)):
        for process in child_processes.find_started_by_thread(_forks.earlier):
            scope.add_process(process)
