"""Child processes that the code of runs has started, and their end.

A process is watched by its file descriptor (`pidfd_open`, Linux 5.3), which is bound to the process
and not to its number, and leaves its exit code to the code that started it. On other systems no
process is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

KILL_SECONDS = 2.0
"""Time from the SIGTERM for a process to its SIGKILL."""

MAXIMUM_DESCENDANTS = 1_000
"""Number of descendants of the processes of a run that are ended with them."""

_STOP_SECONDS = 1.0
"""Time that SIGSTOP has to stop processes; those that wait for a device may take longer."""

_LOOK_SECONDS = 0.001
"""Time until the next check if processes have stopped."""

_open: dict[KnownProcess, ChildProcess] = {}
"""The processes that are watched and have not ended."""


class KnownProcess(NamedTuple):
    """A process: its number, which may be used again, and its start in ticks of the kernel."""

    pid: int
    started: int


class ChildProcess:
    """A process that has not ended. Belongs to one event loop.

    Args:
        descriptor: its file descriptor, which becomes readable when the process ends. The object
            closes it then.
    """

    name: str
    """The name of the program."""

    ended: asyncio.Future[None]
    """Done when the process has ended."""

    def __init__(self, identity: KnownProcess, descriptor: int) -> None:
        self.name = _read_file(f"/proc/{identity.pid}/comm").strip() or "process"
        self._identity = identity
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self.ended = self._loop.create_future()
        self._loop.add_reader(descriptor, self._on_end)
        _open[identity] = self

    def is_stopped(self) -> bool:
        """Return True if no thread of the process executes."""
        threads = _list_threads(self._identity.pid)
        states = (_read_fields(f"{thread}/stat")[:1] for thread in threads)
        return all(state in ([], ["T"], ["t"], ["Z"], ["X"]) for state in states)

    def open_children(self) -> Iterator[ChildProcess]:
        """Watch the child processes, and yield them."""
        for thread in _list_threads(self._identity.pid):
            for pid_text in _read_file(f"{thread}/children").split():
                identity = _identify(int(pid_text))
                if identity is None:
                    continue
                child = open_process(identity)
                if child is not None:
                    yield child

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if not self.ended.done():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        _open.pop(self._identity, None)
        if not self.ended.done():
            self.ended.set_result(None)


def find_started_by_thread(earlier: Iterable[int] = ()) -> list[KnownProcess]:
    """Return the child processes that the current thread has started.

    Args:
        earlier: numbers of processes to leave out.
    """
    path = f"/proc/self/task/{threading.get_native_id()}/children"
    pids = map(int, _read_file(path).split())
    processes = [_identify(pid) for pid in pids if pid not in earlier]
    return [process for process in processes if process is not None]


def open_process(process: KnownProcess) -> ChildProcess | None:
    """Watch a process; return None if it has ended, or if this system cannot watch processes."""
    if process in _open:
        return _open[process]

    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        return None

    # Read after the descriptor was opened: now the number belongs to the same process.
    if _identify(process.pid) != process:
        os.close(descriptor)
        return None
    return ChildProcess(process, descriptor)


def identify_child(pid: int) -> KnownProcess | None:
    """Return the identity of a child of this process that has not ended."""
    return _identify(pid, parent=os.getpid())


def is_running(process: KnownProcess) -> bool:
    """Return True if the process has not ended, and its number belongs to no other process."""
    return _identify(process.pid) == process


class _Tree:
    """Processes and their descendants, all of which are stopped before one gets a signal.

    While a process continues, it may start another process, which is not found later: after the end
    of its parent it is a child of process 1.

    Args:
        tops: the processes whose descendants are searched for.
        on_found: called with each process.
    """

    processes: dict[ChildProcess, None]
    """The processes that are known, in the order in which they were found."""

    def __init__(
        self, tops: Iterable[ChildProcess], on_found: Callable[[ChildProcess], object]
    ) -> None:
        self.processes = {}
        # Those that have got SIGSTOP last, and may not have stopped yet.
        self._stopping: list[ChildProcess] = []
        self._on_found = on_found
        self._deadline = time.monotonic() + _STOP_SECONDS
        self._add([top for top in tops if not top.ended.done()])
        self._maximum = len(self.processes) + MAXIMUM_DESCENDANTS

    def stop(self) -> bool:
        """Stop the processes that are new; return True if none continues, or no time is left."""
        while self._stopping:
            self._stopping = [process for process in self._stopping if not process.is_stopped()]
            if self._stopping:
                return time.monotonic() > self._deadline

            # All are read again: a list that is read while children end may lack some (proc(5)).
            children = (child for process in self.processes for child in process.open_children())
            unknown = dict.fromkeys(child for child in children if child not in self.processes)
            self._add(list(islice(unknown, self._maximum - len(self.processes))))
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all processes, and let them continue."""
        for process in self.processes:
            process.send(number)
        for process in self.processes:
            process.send(signal.SIGCONT)

    def _add(self, new_processes: list[ChildProcess]) -> None:
        for process in new_processes:
            process.send(signal.SIGSTOP)
            self._on_found(process)
        self.processes.update(dict.fromkeys(new_processes))
        self._stopping = new_processes


def terminate(
    processes: Iterable[ChildProcess], on_found: Callable[[ChildProcess], object] = lambda _: None
) -> list[ChildProcess]:
    """Send SIGTERM to processes and their descendants; return all that are known at once.

    Processes that continue, and what they have started meanwhile, get SIGKILL after `KILL_SECONDS`.

    Args:
        on_found: called with each process before one of them gets a signal.
    """
    loop = asyncio.get_running_loop()

    def send(tree: _Tree, number: signal.Signals) -> None:
        if not tree.stop():
            loop.call_later(_LOOK_SECONDS, send, tree, number)
            return
        tree.send(number)
        if number == signal.SIGTERM:
            loop.call_later(KILL_SECONDS, kill, tree)

    def kill(tree: _Tree) -> None:
        remaining = [process for process in tree.processes if not process.ended.done()]
        if remaining:
            send(_Tree(remaining, on_found), signal.SIGKILL)

    tree = _Tree(processes, on_found)
    if tree.processes:
        send(tree, signal.SIGTERM)
    return list(tree.processes)


def terminate_all() -> set[asyncio.Future[None]]:
    """Send SIGTERM to all watched processes and their descendants; return their ends."""
    return {process.ended for process in terminate(_open.values())}


def kill_all() -> None:
    """Send SIGKILL to all watched processes and their descendants, at the end of this process."""
    tree = _Tree(_open.values(), lambda _: None)
    while not tree.stop():
        time.sleep(_LOOK_SECONDS)
    tree.send(signal.SIGKILL)


def _list_threads(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        folder = f"/proc/{pid}/task"
        return [f"{folder}/{name}" for name in os.listdir(folder)]  # noqa: PTH208 (a tenth)
    return []


def _identify(pid: int, parent: int | None = None) -> KnownProcess | None:
    """Return the identity of a process that has not ended.

    Args:
        parent: the number of its parent; None for any parent.
    """
    # The state, the parent, and in the 20th place the start (proc_pid_stat(5), from field 3 on).
    fields = _read_fields(f"/proc/{pid}/stat")
    if len(fields) < 20:
        return None

    has_ended = fields[0] in ("Z", "X")
    if has_ended or parent not in (None, int(fields[1])):
        return None
    return KnownProcess(pid, int(fields[19]))


def _read_fields(path: str) -> list[str]:
    """Return the fields of a file `stat` from the state of the process on."""
    # The name of the program is in parentheses and may contain anything.
    return _read_file(path).rpartition(")")[2].split()


def _read_file(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (a third of the time)
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
