"""The event loop of a process that executes tools, its tasks, and the end of such a process.

Task groups have a bounded wait, and retries last while a database is unavailable.

While a step of the event loop works, no request and no other run of the process continues. Work
that grows with what a peer sends, such as a model endpoint, an MCP program or an agent in code, is
refused by its size, divided into steps, or done in a thread (decision 75).

Tools may leave work that cannot be stopped: tasks that ignore their cancellation, threads of
an executor, threads that Python joins at its exit. A process that has stored the end of its runs
and has closed its databases does not wait for such work (docs/cancellation.md "What can hang").
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, repeat
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from agentctl import errors
from agentctl.work import child_processes
from agentctl.work.run_scope import current_scope, outside_run

T = TypeVar("T")

RETRY_LIMIT_SECONDS = 30.0
"""Maximum time that a run waits for a database that it needs to continue."""

RETRY_PAUSES = (0.25,)
"""Seconds between two attempts; the last number repeats."""

STEP_SECONDS = 0.01
"""Time after which a loop over received items gives other tasks their turn."""

STEP_BYTES = 65_536
"""Size of data whose conversion is a step of the event loop; larger data is converted in a thread,
between whose instructions other tasks get their turn."""

_begun: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()
"""When `take_shared_turn` was called first in the present step of an event loop."""


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
        while self._tasks:
            seconds_left = deadline - loop.time()
            if seconds_left <= 0:
                return
            await asyncio.wait(self._tasks, timeout=seconds_left)

    async def cancel_all(self, seconds: float | None = None) -> None:
        """Cancel all tasks and wait until they are done.

        Args:
            seconds: maximum wait; None only for tasks that do end on a cancel.
        """
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=seconds)
            if seconds is not None:
                return


async def retry_while_unavailable(
    attempt: Callable[[], Awaitable[T]],
    *,
    stopped: asyncio.Future[None] | None = None,
    seconds: float | None = None,
    pauses: Sequence[float] = RETRY_PAUSES,
    on_unavailable: Callable[[], None] | None = None,
) -> T:
    """Retry `attempt` until the database answers, and return its result.

        state = await retry_while_unavailable(lambda: database.read(run_reads.get_state(run_id)))

    Args:
        attempt: the action; a repetition must have no further effect.
        stopped: done when the result is no longer needed; None if it is needed in any case.
        seconds: time after which no further attempt is made; None for `RETRY_LIMIT_SECONDS`.
        pauses: seconds between two attempts; the last number repeats.
        on_unavailable: called after each attempt that is repeated.

    Raises:
        Unavailable: the database did not answer for `seconds`, or `stopped` is done.
        DatabaseDamaged: it is damaged, which no retry within `seconds` changes.
        DatabaseClosed: this process has closed it.
    """
    limit = RETRY_LIMIT_SECONDS if seconds is None else seconds
    deadline = time.monotonic() + limit
    waits = chain(pauses, repeat(pauses[-1]))

    while True:
        try:
            return await attempt()
        except errors.Unavailable as error:
            # The end of a run is stored without a time limit: a file may be put back.
            if isinstance(error, errors.DatabaseDamaged) and limit < math.inf:
                raise
            # Work that a run has left behind may end after the shutdown, and wants to be recorded.
            if isinstance(error, errors.DatabaseClosed):
                raise
            if (stopped is not None and stopped.done()) or time.monotonic() >= deadline:
                raise

        if on_unavailable is not None:
            on_unavailable()

        if stopped is None:
            await asyncio.sleep(next(waits))
        else:
            await asyncio.wait({stopped}, timeout=next(waits))


async def retry_until_stopped(
    attempt: Callable[[], Awaitable[T]], stopped: asyncio.Future[None]
) -> T:
    """Retry a read or a write of the code of a run, as `retry_while_unavailable` does.

    Args:
        stopped: done when the run has to stop. It is polled and not awaited: the code may work in a
            thread with its own event loop.

    Raises:
        CancelledError: the run has to stop. A failure of the database would let its code continue.
        Unavailable: the database did not answer for `RETRY_LIMIT_SECONDS`.
    """

    def check_stop() -> None:
        if stopped.done():
            raise asyncio.CancelledError

    return await retry_while_unavailable(attempt, on_unavailable=check_stop)


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


def build_abandoned_outcome(run_id: str | None = None) -> errors.OutcomeUnknown:
    """Build the error of a request whose process ends before its database has answered."""
    unknown = errors.OutcomeUnknown(
        "The server has shut down, and the request may have been executed",
        cause="its database did not answer in time",
        hint="look for its effect before you repeat the request",
    )
    unknown.run_id = run_id
    return unknown


class Turns:
    """Gives the other tasks of the event loop their turn while a task works on many items.

    A task that awaits something which takes time anyway is not delayed.

        turns = Turns()
        for item in items:
            await turns.take()
            convert(item)
    """

    def __init__(self) -> None:
        self._begun: float | None = None

    async def take(self) -> None:
        """Let other tasks continue if this one has worked for `STEP_SECONDS`."""
        now = time.perf_counter()
        if self._begun is None:
            self._begun = now
            self._loop.call_soon(self._renew)
        elif now - self._begun >= STEP_SECONDS:
            await asyncio.sleep(0)

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # Kept: in Python 3.11 a system call is necessary to find the running event loop.
        return asyncio.get_running_loop()

    def _renew(self) -> None:
        self._begun = None


async def take_shared_turn() -> None:
    """Wait for a step of the event loop in which callers have worked less than `STEP_SECONDS`.

    For short work of many tasks: a step of the loop continues all tasks that are ready.
    """
    loop = asyncio.get_running_loop()
    while True:
        begun = _begun.get(loop)
        if begun is None:
            break
        if time.perf_counter() - begun < STEP_SECONDS:
            return
        await asyncio.sleep(0)

    _begun[loop] = time.perf_counter()
    loop.call_soon(_begun.pop, loop, None)


async def convert(function: Callable[[], T], size: int, step_bytes: int = STEP_BYTES) -> T:
    """Call a function that converts data, in a thread if the data is large.

    A cancel does not end a thread; its result is dropped.

    Args:
        function: has no effect except its result.
        size: the size of the data in bytes or characters.
        step_bytes: the size that is a step of the event loop.
    """
    if size <= step_bytes:
        return function()
    with outside_run():
        return await asyncio.to_thread(function)


LEFTOVER_SECONDS = 1.0
"""Time that the remaining work has to end after its last cancel, and the threads after that."""

MAXIMUM_ABANDONED = 64
"""Number of abandoned threads of a process that still run, from which no tool call is made."""

_LOG_SECONDS = 60.0
"""Minimum time between two log lines about too many threads."""

_TURNS = 20
"""Turns of the event loop that cancelled work gets at least."""

_log = logging.getLogger("agentctl.runtime")

_handled_signals: set[int] = set()
"""The signals of `handle_signals`."""

_forking = threading.local()
"""The signal mask of a thread before it forks."""

_open_loops: set[asyncio.AbstractEventLoop] = set()
"""Event loops of `run_event_loop` that are not closed, because some of their work did not end."""


class _RunLoop:
    """A base of event loops, which adds the calls of a run in executors of its own to the run."""

    def run_in_executor(
        self,
        executor: concurrent.futures.Executor | None,
        function: Callable[..., Any],
        *arguments: Any,
    ) -> asyncio.Future[Any]:
        scope = current_scope.get()
        if scope is None or executor is None:
            # The default executor knows its calls itself (`unstopped.RunThreadExecutor`).
            base: Any = super()
            default: asyncio.Future[Any] = base.run_in_executor(executor, function, *arguments)
            return default

        if isinstance(executor, concurrent.futures.ThreadPoolExecutor):
            # What the function starts belongs to the run, too.
            function = partial(contextvars.copy_context().run, function)
        call = executor.submit(function, *arguments)
        scope.add_call(call)
        return asyncio.wrap_future(call, loop=cast(asyncio.AbstractEventLoop, self))


def build_loop_class(base: type[Any]) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a class of event loops that know the calls of runs in executors."""
    return cast(Callable[[], asyncio.AbstractEventLoop], type("RunLoop", (_RunLoop, base), {}))


def run_event_loop(
    work: Coroutine[Any, Any, T],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run `work` on a new event loop and return its result, as `asyncio.run` does.

    Unlike `asyncio.run`, it abandons tasks that ignore their cancellation at the end, after
    `LEFTOVER_SECONDS`. Then the process has to end by `finish_process`. Code of users does not end
    the event loop: if a task raises SystemExit or KeyboardInterrupt, the exception stays in the
    task, and a loop that was stopped continues.

    Raises:
        KeyboardInterrupt: SIGINT was received, and `work` has ended or SIGINT was repeated.
        RuntimeError: an event loop runs in this thread.
        BaseException: the exception of `work`.
    """
    # The loop below would take the error of `Runner.run` for a tool that has stopped it, forever.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise RuntimeError("an event loop runs in this thread already")

    runner = asyncio.Runner(loop_factory=loop_factory)
    loop = runner.get_loop()
    _open_loops.add(loop)

    main = loop.create_task(work)
    waiters: list[asyncio.Task[Any]] = []
    try:
        while True:
            try:
                return runner.run(_wait_for(main, waiters))
            except (SystemExit, KeyboardInterrupt) as error:
                # SIGINT cancels the waiter, a second one raises; a time limit cancels `main` alone.
                if main.done() or any(waiter.cancelling() for waiter in waiters):
                    raise
                name = type(error).__name__
                _log.error("a task of a tool raised %s, which ends only this task", name)
            except RuntimeError:
                if main.done():
                    raise
                _log.error("a tool stopped the event loop, which continues")
    finally:
        if loop.run_until_complete(_end_remaining_work()):
            loop.set_exception_handler(_report_at_end)
            runner.close()
            _open_loops.discard(loop)


@contextlib.contextmanager
def handle_signals(handlers: Mapping[int, Callable[[], None]]) -> Iterator[None]:
    """Have the event loop call the handlers of signals while the block lasts."""
    loop = asyncio.get_running_loop()
    for number, handle in handlers.items():
        loop.add_signal_handler(number, handle)
    _handled_signals.update(handlers)
    try:
        yield
    finally:
        _handled_signals.difference_update(handlers)
        for number in handlers:
            loop.remove_signal_handler(number)


def _block_signals() -> None:
    """Block the handled signals while this thread forks, so that the child receives none early."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handled_signals)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _reset_signals() -> None:
    """Give a forked child the default signal handlers.

    The child has a copy of the handlers and shares the socket that wakes the event loop. A signal
    to the child, such as the SIGTERM of `multiprocessing.Pool.terminate`, would stop the parent.
    """
    if _open_loops:
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)
        for number in _handled_signals:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
    _unblock_signals()


os.register_at_fork(
    before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_reset_signals
)


def stop_signals() -> list[int]:
    """Return the signals that stop a server; SIGHUP (a closed terminal) unless nohup ignores it."""
    signals: list[int] = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


class TooManyAbandonedThreads(Exception):
    """`MAXIMUM_ABANDONED` abandoned threads still run, so no thread was started."""


class AbandonedThreads:
    """The number of abandoned threads of this process that still run. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self._logged_at = -_LOG_SECONDS

    def check(self, name: str) -> None:
        """Check that a call may start a thread.

        Args:
            name: the tool, for the log.

        Raises:
            TooManyAbandonedThreads: `MAXIMUM_ABANDONED` of them still run.
        """
        if self.count < MAXIMUM_ABANDONED:
            return

        now = time.monotonic()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            _log.error(
                "the tool %s was not called: %d cancelled tool calls still run in this process",
                name,
                self.count,
            )
        raise TooManyAbandonedThreads

    def add(self, call: concurrent.futures.Future[Any]) -> None:
        """Count the thread of this call until the call is done."""
        with self.lock:
            self.count += 1
        call.add_done_callback(self._remove)

    def _remove(self, _: concurrent.futures.Future[Any]) -> None:
        with self.lock:
            self.count -= 1


abandoned_threads = AbandonedThreads()


async def wait_until_done(works: set[asyncio.Future[Any]], seconds: float) -> bool:
    """Wait for cancelled work. Return True if all of it has ended.

    Args:
        seconds: maximum time on an idle event loop. A busy loop takes longer for each turn, also
            for the turns of the work, so the work gets `_TURNS` turns in any case.
    """
    for _ in range(_TURNS):
        _, pending = await asyncio.wait(works, timeout=seconds / _TURNS)
        if not pending:
            return True
    return False


def retrieve_exception(done: asyncio.Future[Any]) -> None:
    """Retrieve the exception of work that no task awaits, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()


async def _wait_for(main: asyncio.Task[T], waiters: list[asyncio.Task[Any]]) -> T:
    waiter = asyncio.current_task()
    assert waiter is not None
    waiters.append(waiter)
    # If a task of a tool interrupts the loop, nothing awaits this waiter any more.
    waiter.add_done_callback(retrieve_exception)
    return await main


async def _end_remaining_work() -> bool:
    """Cancel all other tasks and end the child processes; return True if all work has ended."""
    loop = asyncio.get_running_loop()
    this_task = asyncio.current_task()
    executor = loop.create_task(loop.shutdown_default_executor())

    remaining = asyncio.all_tasks() - {this_task, executor}
    for task in remaining:
        task.cancel()

    processes = child_processes.terminate_all()
    ended = await wait_until_done({executor, *remaining, *processes}, LEFTOVER_SECONDS)
    child_processes.kill_all()

    for task in remaining:
        if task.done():
            retrieve_exception(task)

    if ended and not asyncio.all_tasks() - {this_task}:
        return True

    # Each run has logged what did not end; at the terminal of a command this is not repeated.
    _log.info("the process ends although work of its tools continues")
    return False


def _report_at_end(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report an error of the end of an event loop.

    asyncio closes all generators that the code of runs has left at once. A generator that closes
    another one fails then, because the other one is closing already.
    """
    if "asyncgen" in context:
        _log.info("a generator that a run has left did not close: %s", context.get("exception"))
    else:
        loop.default_exception_handler(context)


def finish_process(code: int) -> None:
    """End the process within some seconds, although work of tools remains.

    Returns if nothing prevents an ordinary exit, which is then bounded in time: Python joins
    threads at its exit, and a thread of a tool may never end. With abandoned threads there is no
    ordinary exit: one that wakes up in native code while Python ends would abort the process.
    """
    if _open_loops or abandoned_threads.count:
        _exit_now(code)

    if threading.active_count() > 1:
        timer = threading.Timer(LEFTOVER_SECONDS, _exit_now, (code,))
        timer.daemon = True
        timer.start()


def _exit_now(code: int) -> None:
    # An ordinary exit would end the workers of pools.
    pools = sys.modules.get("multiprocessing")
    if pools is not None:
        with contextlib.suppress(Exception):
            for process in pools.active_children():
                process.terminate()

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
