"""Which process this is, and whether another one of this machine is still there.

A pid alone names nobody: it is used again, and means something else on another machine, after a
restart of this one, and in another container. The time of the start, the id of the boot and the
namespace of the pid (proc(5), pid_namespaces(7)) make it a name.

The lock file of a worker: held for as long as the process lives, freed by the kernel.

Processes that share a SQLite file share one kernel, and so the locks on files beside it, even when
they see each other's pids differently or not at all (flock(2)).
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "ProcessIdentity",
    "WorkerLock",
    "has_exited",
    "identify_this_process",
    "is_lock_free",
    "remove_lock",
    "remove_stale_locks",
]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")

_EXITED_STATES = frozenset({"Z", "X", "x"})
"""States of a process that has ended and that its parent has not asked about yet (proc(5))."""


class ProcessIdentity(NamedTuple):
    """A process, told apart from every other one.

    Attributes:
        boot_id: kernel boot id and pid namespace; "" where the system does not tell, and then
            the pid says nothing to others.
        process_start: clock ticks from the boot to its start; 0 where the system does not tell.
    """

    host: str
    boot_id: str
    pid: int
    process_start: int


class _ProcessState(NamedTuple):
    """What the system says of a pid."""

    ended: bool
    start: int


def identify_this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    pid = os.getpid()
    seen = _read_process_state(pid)
    return ProcessIdentity(socket.gethostname(), _boot_id(), pid, seen.start if seen else 0)


def has_exited(process: ProcessIdentity) -> bool:
    """Whether a process is known to have ended. False for what cannot be judged from here."""
    if not process.boot_id or process.boot_id != _boot_id():
        return False
    if process.host != socket.gethostname():
        return False
    if not _pid_exists(process.pid):
        return True
    seen = _read_process_state(process.pid)
    if seen is None:
        return False
    return seen.ended or (process.process_start != 0 and seen.start != process.process_start)


@cache
def _boot_id() -> str:
    try:
        return f"{_BOOT.read_text().strip()}/{_NAMESPACE.stat().st_ino}"
    except OSError:
        return ""


def _pid_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # It is there, and not ours to signal.
        return True
    return True


def _read_process_state(pid: int) -> _ProcessState | None:
    """State and start of a process, None where the system does not tell.

    The name of the program, the second field, may hold anything: fields are counted behind it.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return _ProcessState(fields[0].decode() in _EXITED_STATES, int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


_LOCK_SUFFIX = ".lock"

STALE_LOCK_SECONDS = 60.0
"""Age from which a free lock file without a worker is nobody's."""


class WorkerLock:
    """A lock that this process holds; made by `take`. Programs that it starts do not inherit it."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file

    @classmethod
    def take(cls, folder: Path, worker_id: str) -> WorkerLock:
        """Make the file of a new worker and lock it. Raises OSError."""
        folder.mkdir(mode=0o700, exist_ok=True)
        path = _lock_path(folder, worker_id)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            path.unlink()
            raise
        return cls(path, file)

    def release(self) -> None:
        """Give the lock up and leave the file, free: to others that says that the worker ended."""
        os.close(self._file)

    def remove(self) -> None:
        """Remove the file and give the lock up. It is never seen free."""
        with suppress(OSError):
            self._path.unlink()
        os.close(self._file)


def is_lock_free(folder: Path | None, worker_id: str) -> bool:
    """Whether the worker's file is there and nobody holds it. No file, no answer: False."""
    return folder is not None and _is_unlocked(_lock_path(folder, worker_id))


def remove_lock(folder: Path | None, worker_id: str) -> None:
    """Remove the file of a worker that is dead."""
    if folder is None:
        return
    with suppress(OSError):
        _lock_path(folder, worker_id).unlink()


def remove_stale_locks(folder: Path | None, workers: Collection[str]) -> None:
    """Remove files that nobody holds and that belong to none of the workers."""
    if folder is None:
        return
    with suppress(OSError):
        for path in list(folder.glob(f"*{_LOCK_SUFFIX}")):
            if path.stem not in workers and _is_old(path) and _is_unlocked(path):
                path.unlink()


def _lock_path(folder: Path, worker_id: str) -> Path:
    return folder / f"{worker_id}{_LOCK_SUFFIX}"


def _is_old(path: Path) -> bool:
    return abs(time.time() - path.stat().st_mtime) > STALE_LOCK_SECONDS


def _is_unlocked(path: Path) -> bool:
    """Ask with a shared lock: several may ask at once without taking each other for the holder."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True
