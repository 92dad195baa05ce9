"""Tasks, calls in executors, threads and child processes that the code of a run starts.

They belong to the run: a cancelled or failed run cancels its tasks and ends its child processes,
and the record of every run names the work that continues after its end (docs/cancellation.md). A
context variable, `work.run_scope.current_scope`, is set while the code of an agent or of a tool
executes, and the tasks and threads of that code have a copy. `work.start_hooks` sees the starts.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, cast

from agentctl.work import child_processes, origins, start_hooks
from agentctl.work.child_processes import ChildProcess, KnownProcess
from agentctl.work.event_loop import wait_until_done
from agentctl.work.run_scope import current_call, current_scope
from agentctl.work.unstopped import RUNNER, UnstoppedWork

_log = logging.getLogger("agentctl.runtime")

GRACE_SECONDS = 0.05
"""Time that cancelled tasks and processes have to end before the record of their run names them."""

REPEAT_SECONDS = 1.0
"""Time after which tasks are cancelled that were started after the cancel of their run, for example
to close a connection."""

POLL_SECONDS = 0.05
"""Interval of the checks of threads: nothing reports the end of a thread of another library."""

_CLOSING_TURNS = 20
"""Turns of the event loop in which no generator ends, after which a run does not wait for them."""

_MAXIMUM_NESTED = 1_000
"""Number of generators for whose end a run waits, if each leaves another generator."""

_PRUNE_COUNT = 64
"""Number of started processes at which the ended ones are forgotten."""

StartedProcess = KnownProcess | weakref.ref[Any]
"""A process, or the `subprocess.Popen` that starts it, whose number is not known yet."""


class StartedWork:
    """The work that the code of one run has started. Belongs to one event loop.

    Args:
        unstopped: gets the work that does not end with the run.
    """

    def __init__(self, unstopped: UnstoppedWork) -> None:
        self._unstopped = unstopped
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[Any], CodeScope] = {}
        self._calls: dict[Future[Any], CodeScope] = {}
        self._threads: list[tuple[weakref.ref[threading.Thread], CodeScope]] = []
        self._processes: list[tuple[StartedProcess, CodeScope]] = []
        # The work that the record of the run names, with its end.
        self._named: dict[Any, asyncio.Future[Any]] = {}
        self._has_ended = False
        self._is_cancelled = False
        # True while a repetition is scheduled: of the cancel, and of the checks of threads.
        self._repeats = False
        self._polls = False

    def add_task(self, task: asyncio.Task[Any], scope: CodeScope) -> None:
        """Add a task that was created now. Called on the event loop."""
        self._tasks[task] = scope
        task.add_done_callback(self._forget_task)
        if not self._has_ended:
            return

        if self._is_cancelled and self._unstopped.has_ended:
            # For the record the work has stopped: a timer has started this task.
            task.cancel()
        elif origins.is_closing(task):
            self._loop.call_later(GRACE_SECONDS, self._name_task, task, scope)
        else:
            self._name_task(task, scope)

    def add_call(self, call: Future[Any], scope: CodeScope) -> None:
        """Add a call in an executor. Called in any thread."""
        self._calls[call] = scope
        call.add_done_callback(self._forget_call)
        self._handle_late_start()

    def add_thread(self, thread: threading.Thread, scope: CodeScope) -> None:
        """Add a thread that starts now. Called in any thread."""
        self._threads.append((weakref.ref(thread), scope))
        self._handle_late_start()

    def add_process(self, process: StartedProcess, scope: CodeScope) -> None:
        """Add a process, or the `Popen` that starts one now. Called in any thread."""
        if len(self._processes) >= _PRUNE_COUNT:
            self._processes = [
                (started, owner)
                for started, owner in self._processes
                if _identify(started) is not None
            ]
        self._processes.append((process, scope))
        self._handle_late_start()

    async def end(self, *, cancel: bool) -> None:
        """Add the work to the unstopped work of the run, after cancelling it or not.

        A task that was cancelled already is not cancelled again: that would interrupt its end.
        """
        self._is_cancelled = cancel

        # What the end of the agent has ended or cancelled has its turns first.
        await _take_turns()

        # A task that was cancelled with the agent has had its time.
        works: set[asyncio.Future[Any]] = self._cancel_tasks() if cancel else set()

        await self._wait_for_generators()
        self._has_ended = True

        if cancel:
            works |= self._cancel_tasks()
            works |= {process.ended for process in self.cancel()}

        if works:
            await wait_until_done(works, GRACE_SECONDS)

        self._name_rest()
        if self._is_starting():
            self._hold_late_start()

    async def _wait_for_generators(self) -> None:
        """Wait until the generators are closed that the code of the run did not read to the end.

        A generator that is closed may leave another generator. The bound is a number of turns of
        the event loop in which none ends, not a time: on a busy machine, each turn takes longer. In
        a cancelled run, code that ignores the cancel may leave generators for ever.
        """
        left_turns = _CLOSING_TURNS
        maximum = _CLOSING_TURNS if self._is_cancelled else _MAXIMUM_NESTED
        for _ in range(maximum):
            closing = {task for task in self._tasks if origins.is_closing(task)}
            if not closing or not left_turns:
                return
            ended, _ = await asyncio.wait(closing, timeout=GRACE_SECONDS / _CLOSING_TURNS)
            if not ended:
                left_turns -= 1
            await _take_turns()

    def cancel(self, scope: CodeScope | None = None) -> list[ChildProcess]:
        """Cancel the tasks and end the processes of a scope, or all. Return these processes."""
        self._cancel_tasks(scope)
        for call, owner in list(self._calls.items()):
            if scope in (None, owner):
                # Only a call that waits for its turn can be cancelled.
                call.cancel()

        if self._is_cancelled:
            self._repeat_cancel()

        processes = (process for process, owner in self._open_processes() if scope in (None, owner))
        return child_processes.terminate(processes, self._name_cancelled)

    def _name_cancelled(self, process: ChildProcess) -> None:
        if self._is_cancelled:
            self._add(process, process.ended, f"process {process.name}")

    def _cancel_tasks(self, scope: CodeScope | None = None) -> set[asyncio.Future[Any]]:
        """Cancel the tasks of a scope, or all, and return those that were not cancelled before.

        Until the end of the run, generators have the time to close.
        """
        tasks = set[asyncio.Future[Any]]()
        for task, owner in self._tasks.items():
            if scope not in (None, owner) or task.cancelling():
                continue
            if self._has_ended or not origins.is_closing(task):
                tasks.add(task)

        # Only now: the cancel of a task cancels the task that it awaits as well.
        for selected_task in tasks:
            selected_task.cancel()
        return tasks

    def _name_rest(self) -> None:
        """Add the work that has not ended, and is not named yet, to the unstopped work."""
        for task, scope in list(self._tasks.items()):
            self._name_task(task, scope)

        for call, scope in list(self._calls.items()):
            if not call.done() and call not in self._named:
                ended = asyncio.wrap_future(call, loop=self._loop)
                self._add(call, ended, scope.find_name(call), has_result=self._is_cancelled)

        for process, scope in self._open_processes():
            self._add(process, process.ended, scope.find_name(process))

        for reference, scope in self._threads:
            thread = reference()
            if thread is not None and thread not in self._named and thread.is_alive():
                self._add(thread, self._loop.create_future(), scope.find_name(thread))

        if not self._polls:
            self._poll_threads()

    def _name_task(self, task: asyncio.Task[Any], scope: CodeScope) -> None:
        if task in self._named or task.done():
            return
        if not self._is_cancelled:
            task.add_done_callback(_log_failure)
        self._add(task, task, scope.find_name(task), has_result=self._is_cancelled)

    def _add(
        self, work: Any, ended: asyncio.Future[Any], name: str, *, has_result: bool = False
    ) -> None:
        if work in self._named or ended.done():
            return

        self._named[work] = ended
        ended.add_done_callback(lambda _: self._named.pop(work, None))
        self._unstopped.add(ended, name, has_result=has_result)

    def _handle_late_start(self) -> None:
        if self._has_ended:
            with suppress(RuntimeError):
                # The event loop may be closed.
                self._loop.call_soon_threadsafe(self._hold_late_start)

    def _hold_late_start(self) -> None:
        """Look again at work that starts now, when it exists; the run has not stopped until then.

        This is called before the end of the code that starts the work is known. The code may be the
        last work of the run.
        """
        late_start = self._loop.create_future()
        self._unstopped.add(late_start, has_result=False)
        self._loop.call_later(POLL_SECONDS, self._end_late_start, late_start)

    def _end_late_start(self, late_start: asyncio.Future[None]) -> None:
        if self._is_cancelled:
            self.cancel()

        self._name_rest()
        late_start.set_result(None)

        if self._unstopped.pending and self._is_starting():
            self._hold_late_start()

    def _is_starting(self) -> bool:
        """Return True if a thread starts something that is not known yet, or has failed."""
        for reference, _scope in self._threads:
            thread = reference()
            if thread is not None and thread.ident is None:
                return True

        for process, _scope in self._processes:
            popen = None if isinstance(process, KnownProcess) else process()
            if popen is not None and popen.pid is None:
                return True
        return False

    def _repeat_cancel(self) -> None:
        def repeat() -> None:
            self._repeats = False
            if any(not task.cancelling() for task in self._tasks):
                self.cancel()
            else:
                self._repeat_cancel()

        if self._tasks and not self._repeats:
            self._repeats = True
            self._loop.call_later(REPEAT_SECONDS, repeat)

    def _open_processes(self) -> Iterator[tuple[ChildProcess, CodeScope]]:
        """Watch the processes that have not ended, and yield them."""
        for started, scope in self._processes:
            identity = _identify(started)
            if identity is None:
                continue
            process = child_processes.open_process(identity)
            if process is not None:
                yield process, scope

    def _poll_threads(self) -> None:
        threads = [work for work in self._named if isinstance(work, threading.Thread)]
        for thread in threads:
            if not thread.is_alive():
                self._named.pop(thread).set_result(None)
        self._polls = bool(threads)
        if threads:
            self._loop.call_later(POLL_SECONDS, self._poll_threads)

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def _forget_call(self, call: Future[Any]) -> None:
        self._calls.pop(call, None)


class CodeScope:
    """The code of an agent, or of one call of a tool, and its part of the work of the run.

    Args:
        tool: name of the tool; None for the code of an agent.
    """

    def __init__(self, unstopped: UnstoppedWork, tool: str | None = None) -> None:
        if unstopped.started is None:
            unstopped.started = StartedWork(unstopped)
        self._started = cast(StartedWork, unstopped.started)
        self._tool = tool
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Let everything that the block starts belong to this scope."""
        start_hooks.install()
        token = current_scope.set(self)
        try:
            yield
        finally:
            current_scope.reset(token)

    def add_task(self, task: asyncio.Task[Any]) -> None:
        self._keep_name(task)
        self._started.add_task(task, self)

    def add_call(self, call: Future[Any]) -> None:
        self._keep_name(call)
        self._started.add_call(call, self)

    def add_thread(self, thread: threading.Thread) -> None:
        self._keep_name(thread)
        self._started.add_thread(thread, self)

    def add_process(self, process: KnownProcess | weakref.ref[Any]) -> None:
        self._started.add_process(process, self)

    def cancel(self) -> None:
        """Cancel the tasks of this scope and end its processes."""
        self._started.cancel(self)

    def find_name(self, work: Any) -> str:
        """Return the name of work for the record: the name of its tool, or of the work itself."""
        if self._tool is not None:
            return self._tool

        tool_of_code = self._names.get(work)
        if tool_of_code is not None:
            return tool_of_code

        if isinstance(work, threading.Thread):
            return f"thread {work.name}"[:100]
        if isinstance(work, ChildProcess):
            return f"process {work.name}"

        if isinstance(work, asyncio.Task):
            function_name = origins.find_name(work.get_coro())
            if function_name is not None:
                return f"task {function_name}"
        return RUNNER

    def _keep_name(self, work: Any) -> None:
        """Remember the tool call in which the code of an agent starts work."""
        call = current_call.get()
        if call is not None:
            self._names[work] = call.name


async def _take_turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def _log_failure(task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        _log.warning("a task that a completed run has left failed", exc_info=error)


def _identify(process: StartedProcess) -> KnownProcess | None:
    """Return the identity of a process that has not ended."""
    if isinstance(process, KnownProcess):
        return process if child_processes.is_running(process) else None

    popen = process()
    if popen is None or popen.returncode is not None:
        return None
    pid = getattr(popen, "pid", None)
    if pid is None:
        return None
    return child_processes.identify_child(pid)
