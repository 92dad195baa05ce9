"""Identities of processes and lock files of workers, to find out whether a worker still lives.

A pid alone does not identify a process: it is reused, and it means something else on another
machine, after a reboot and in another container. The identity adds the start time, the boot id and
the pid namespace (proc(5), pid_namespaces(7)).

A worker locks its own file as long as it lives; the kernel frees the lock when the process ends.
Processes that share a SQLite file share one kernel and therefore the locks next to that file, even
if they see each other's pids differently or not at all (flock(2), docs/decisions/0094).
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

_EXITED_STATES = frozenset({"Z", "X", "x"})
"""States of a process that has ended and was not waited for by its parent (proc(5))."""

_LOCK_SUFFIX = ".lock"

STALE_LOCK_SECONDS = 60.0
"""Age at which a free lock file that belongs to no worker is removed."""


class ProcessIdentity(NamedTuple):
    """The unique identity of a process.

    Attributes:
        boot_id: kernel boot id and pid namespace; "" if the system does not provide them, and then
            the pid means nothing to other processes.
        process_start: start time in clock ticks since boot; 0 if the system does not provide it.
    """

    host: str
    boot_id: str
    pid: int
    process_start: int


class _ProcessState(NamedTuple):
    ended: bool
    start: int


def identify_this_process() -> ProcessIdentity:
    pid = os.getpid()
    state = _read_process_state(pid)
    return ProcessIdentity(socket.gethostname(), _boot_id(), pid, state.start if state else 0)


def has_exited(process: ProcessIdentity) -> bool:
    """Return True if the process is known to have ended; False if that cannot be judged here."""
    if not process.boot_id or process.boot_id != _boot_id():
        return False
    if process.host != socket.gethostname():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        # The process exists and belongs to another user.
        pass
    state = _read_process_state(process.pid)
    if state is None:
        return False
    return state.ended or (process.process_start != 0 and state.start != process.process_start)


@cache
def _boot_id() -> str:
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _read_process_state(pid: int) -> _ProcessState | None:
    """Return the state and the start of a process; None if the system does not provide them.

    The second field, the name of the program, may contain any character, so fields are counted
    from its closing parenthesis.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return _ProcessState(fields[0].decode() in _EXITED_STATES, int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


class WorkerLock:
    """A locked file of this process, created by `acquire`. Child programs do not inherit it."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file

    @classmethod
    def acquire(cls, folder: Path, worker_id: str) -> WorkerLock:
        """Create the file of a new worker and lock it. Raises OSError."""
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
        """Release the lock and keep the file, so that other processes see the worker as dead."""
        os.close(self._file)

    def remove(self) -> None:
        """Remove the file, then release the lock. No process sees the file unlocked."""
        with suppress(OSError):
            self._path.unlink()
        os.close(self._file)


def is_lock_free(folder: Path | None, worker_id: str) -> bool:
    """Return True if the worker's lock file exists and no process has locked it."""
    return folder is not None and _is_unlocked(_lock_path(folder, worker_id))


def remove_lock(folder: Path | None, worker_id: str) -> None:
    if folder is None:
        return
    with suppress(OSError):
        _lock_path(folder, worker_id).unlink()


def remove_stale_locks(folder: Path | None, workers: Collection[str]) -> None:
    """Remove old, unlocked files that belong to none of the workers."""
    if folder is None:
        return
    with suppress(OSError):
        for path in list(folder.glob(f"*{_LOCK_SUFFIX}")):
            age = abs(time.time() - path.stat().st_mtime)
            if path.stem not in workers and age > STALE_LOCK_SECONDS and _is_unlocked(path):
                path.unlink()


def _lock_path(folder: Path, worker_id: str) -> Path:
    return folder / f"{worker_id}{_LOCK_SUFFIX}"


def _is_unlocked(path: Path) -> bool:
    """Try a shared lock: several processes may test at once without seeing each other's lock."""
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
