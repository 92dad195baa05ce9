"""The lock file of a worker: held for as long as the process lives, freed by the kernel.

Processes that share a SQLite file share one kernel, and so the locks on files beside it, even when
they see each other's pids differently or not at all (flock(2)).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

__all__ = ["WorkerLock", "is_free", "remove", "remove_strays"]

_SUFFIX = ".lock"

STRAY_SECONDS = 60.0
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
        path = _path(folder, worker_id)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            path.unlink()
            raise
        return cls(path, file)

    def drop(self) -> None:
        """Give the lock up and leave the file, free: to others that says that the worker ended."""
        os.close(self._file)

    def remove(self) -> None:
        """Remove the file and give the lock up. It is never seen free."""
        with suppress(OSError):
            self._path.unlink()
        os.close(self._file)


def is_free(folder: Path | None, worker_id: str) -> bool:
    """Whether the worker's file is there and nobody holds it. No file, no answer: False."""
    return folder is not None and _is_free(_path(folder, worker_id))


def remove(folder: Path | None, worker_id: str) -> None:
    """Remove the file of a worker that is dead."""
    if folder is None:
        return
    with suppress(OSError):
        _path(folder, worker_id).unlink()


def remove_strays(folder: Path | None, workers: Collection[str]) -> None:
    """Remove files that nobody holds and that belong to none of the workers."""
    if folder is None:
        return
    with suppress(OSError):
        for path in list(folder.glob(f"*{_SUFFIX}")):
            if path.stem not in workers and _is_old(path) and _is_free(path):
                path.unlink()


def _path(folder: Path, worker_id: str) -> Path:
    return folder / f"{worker_id}{_SUFFIX}"


def _is_old(path: Path) -> bool:
    return abs(time.time() - path.stat().st_mtime) > STRAY_SECONDS


def _is_free(path: Path) -> bool:
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
