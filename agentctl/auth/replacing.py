"""Files that others read at any time are replaced whole: by a new file of the same name."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentctl.errors import Conflict, InvalidKey

__all__ = ["locked", "move", "replace", "set_aside", "write_like"]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have a folder to oneself, among those who ask in this way.

    Raises:
        Conflict: another process has it.
        InvalidKey: there is no such folder.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as failure:
        raise _failed(folder, "opened", failure) from None
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(f"Another process changes the keys in {folder}") from None


def replace(path: Path, data: bytes) -> None:
    """Give a file other contents in one step; its mode and owner stay, and links to it.

    Raises:
        InvalidKey: it cannot be written; it is as it was.
    """
    try:
        real = path.resolve(strict=True)
        new = real.with_name(f".{real.name}.new")
        new.unlink(missing_ok=True)  # of a command that was killed
        write_like(new, data, real)
        move(new, real)
    except OSError as failure:
        raise _failed(path, "written", failure) from None


def write_like(path: Path, data: bytes, model: Path) -> None:
    """Write a new file with mode and owner of another one. Raises OSError."""
    found = model.stat()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchown(descriptor, found.st_uid, found.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def move(source: Path, target: Path) -> None:
    """Put one file in the place of another, for good. Raises OSError."""
    source.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def set_aside(path: Path, aside: Path) -> None:
    """Give a file a second name; it may have it already. Raises OSError."""
    try:
        aside.hardlink_to(path)
    except FileExistsError:
        if not aside.samefile(path):
            raise


def _failed(path: Path, what: str, failure: OSError) -> InvalidKey:
    return InvalidKey(f"{path} cannot be {what}", cause=os.strerror(failure.errno or 0))
