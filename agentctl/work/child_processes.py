"""Child processes that the code of runs has started, and their end.

A process is watched by its file descriptor (`pidfd_open`, Linux 5.3), which is bound to the process
and not to its number, and leaves its exit code to the code that started it. On other systems no
process is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

KILL_SECONDS = 2.0
"""Time from the SIGTERM for a process to its SIGKILL."""

MAXIMUM_DESCENDANTS = 1_000
"""Number of descendants of a process that are ended with it."""

_open: set[ChildProcess] = set()
"""The processes that are watched and have not ended."""


class KnownProcess(NamedTuple):
    """A process: its number, which may be used again, and its start in ticks of the kernel."""

    pid: int
    started: int


class ChildProcess:
    """A process that has not ended.

    Attributes:
        name: name of the program.
        ended: done when the process has ended. Belongs to one event loop.
    """

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.name = _read_file(f"/proc/{pid}/comm").strip() or "process"
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(descriptor, self._on_end)
        _open.add(self)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if not self.ended.done():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        _open.discard(self)
        if not self.ended.done():
            self.ended.set_result(None)


def find_started_by_thread(known: Iterable[int] = ()) -> list[KnownProcess]:
    """Return the child processes that the current thread has started, except the known ones."""
    path = f"/proc/self/task/{threading.get_native_id()}/children"
    found = [_identify(int(text)) for text in _read_file(path).split() if int(text) not in known]
    return [each for each in found if each is not None]


def open_process(process: KnownProcess) -> ChildProcess | None:
    """Watch a process; return None if it has ended, or if this system cannot watch processes."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        return None
    # Read after the descriptor was opened: now the number belongs to the same process.
    if _identify(process.pid) != process or select.select([descriptor], [], [], 0)[0]:
        os.close(descriptor)
        return None
    return ChildProcess(process.pid, descriptor)


def identify_child(pid: int) -> KnownProcess | None:
    """Return the identity of a child of this process that has not ended."""
    return _identify(pid, parent=os.getpid())


def is_running(process: KnownProcess) -> bool:
    return _identify(process.pid) == process


def open_descendants(process: ChildProcess) -> list[ChildProcess]:
    """Watch the processes below a process, such as the commands of a shell."""
    found: list[ChildProcess] = []
    waiting = [process.pid]
    while waiting and len(found) < MAXIMUM_DESCENDANTS:
        for pid in _list_children(waiting.pop()):
            identity = _identify(pid)
            child = open_process(identity) if identity is not None else None
            if child is not None:
                found.append(child)
                waiting.append(pid)
    return found


def terminate(processes: Iterable[ChildProcess]) -> None:
    """Send SIGTERM to processes, and SIGKILL after `KILL_SECONDS` to those that go on."""
    listed = list(processes)
    for process in listed:
        process.send(signal.SIGTERM)
    if listed:
        asyncio.get_running_loop().call_later(KILL_SECONDS, _kill, listed)


def terminate_all() -> set[asyncio.Future[None]]:
    """Send SIGTERM to all watched processes; return the futures of their ends."""
    for process in (listed := list(_open)):
        process.send(signal.SIGTERM)
    return {process.ended for process in listed}


def kill_all() -> None:
    """Send SIGKILL to all watched processes, at the end of this process."""
    _kill(list(_open))


def _kill(processes: Iterable[ChildProcess]) -> None:
    for process in processes:
        process.send(signal.SIGKILL)


def _list_children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        texts = (_read_file(f"{thread}/children") for thread in threads)
        return [int(number) for text in texts for number in text.split()]
    return []


def _identify(pid: int, parent: int | None = None) -> KnownProcess | None:
    # The name of the program is in parentheses and may contain anything.
    fields = _read_file(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X") or parent not in (None, int(fields[1])):
        return None
    return KnownProcess(pid, int(fields[19]))


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", errors="replace")
    except OSError:
        return ""
