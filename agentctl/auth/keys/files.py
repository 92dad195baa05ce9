"""Key files: read without hanging on what is no file, written for the owner's eyes only.

Files that others read at any time are replaced whole: by a new file of the same name.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentctl.errors import Conflict, InvalidKey

__all__ = [
    "MAXIMUM_KEY_FILE",
    "link_old_file",
    "lock_folder",
    "move_file",
    "read_key_file",
    "read_private_key",
    "replace_file",
    "write_private_key",
    "write_with_mode_of",
]

MAXIMUM_KEY_FILE = 1_048_576
"""Bytes; a key file or JWKS beyond it is refused unread."""

_PRIVATE = 0o600


def read_key_file(path: Path, *, private: bool = False) -> bytes:
    """Read a regular file of at most MAXIMUM_KEY_FILE bytes.

    Args:
        path: where it is; links are followed.
        private: it holds a secret: no mode wider than 0600 is accepted.

    Raises:
        InvalidKey: it is missing, unreadable, no regular file, too large, or open to others.
    """
    try:
        # A FIFO without a writer would block an ordinary open for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as failure:
        raise _read_error(path, failure) from None
    except ValueError:
        raise InvalidKey("The name of the key file holds a NUL character") from None
    try:
        _check_file(path, os.fstat(descriptor), private)
        return _read_all(descriptor, path)
    except OSError as failure:
        raise _read_error(path, failure) from None
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, path: Path) -> bytes:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        data = file.read(MAXIMUM_KEY_FILE + 1)
    if len(data) > MAXIMUM_KEY_FILE:
        raise InvalidKey(f"Key file {path} is larger than {MAXIMUM_KEY_FILE} bytes")
    return data


def read_private_key(path: Path) -> bytes:
    """The bytes of a signing key: PEM, or the secret of an HS algorithm.

    Raises:
        InvalidKey: as `read_key_file`; for one that others can read it names the `chmod`.
    """
    return read_key_file(path, private=True)


def write_private_key(path: Path, data: bytes) -> None:
    """Write a new file with mode 0600; a missing folder is made with mode 0700.

    Raises:
        InvalidKey: the file exists already, or cannot be written; nothing is left behind.
    """
    descriptor = _create_file(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except OSError as failure:
        with suppress(OSError):
            path.unlink()
        raise _write_error(path, failure) from None


def _create_file(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failure:
        raise _write_error(path, failure) from None
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
    except FileExistsError:
        raise InvalidKey(
            f"Key file {path} exists already", hint="name another file; a key is never overwritten"
        ) from None
    except OSError as failure:
        raise _write_error(path, failure) from None


def _check_file(path: Path, found: os.stat_result, private: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise InvalidKey(f"Key file {path} is not a regular file")
    if found.st_size > MAXIMUM_KEY_FILE:
        raise InvalidKey(f"Key file {path} is larger than {MAXIMUM_KEY_FILE} bytes")
    mode = stat.S_IMODE(found.st_mode)
    if private and mode & ~_PRIVATE:
        raise InvalidKey(
            f"Key file {path} has mode {mode:04o} and must not be wider than 0600",
            hint=f"chmod 600 {path}",
        )
    if mode & stat.S_IWOTH:
        raise InvalidKey(
            f"Key file {path} has mode {mode:04o}: everybody can write it",
            hint=f"chmod o-w {path}",
        )


def _read_error(path: Path, failure: OSError) -> InvalidKey:
    if isinstance(failure, FileNotFoundError):
        return InvalidKey(
            f"Key file {path} does not exist",
            hint="`agentctl keys generate` or `agentctl init` makes one",
        )
    return InvalidKey(f"Key file {path} cannot be read", cause=os.strerror(failure.errno or 0))


def _write_error(path: Path, failure: OSError) -> InvalidKey:
    return InvalidKey(f"Key file {path} cannot be written", cause=os.strerror(failure.errno or 0))


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Have a folder to oneself, among those who ask in this way.

    Raises:
        Conflict: another process has it.
        InvalidKey: there is no such folder.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as failure:
        raise _file_error(folder, "opened", failure) from None
    try:
        _lock_descriptor(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock_descriptor(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(f"Another process changes the keys in {folder}") from None


def replace_file(path: Path, data: bytes) -> None:
    """Give a file other contents in one step; its mode and owner stay, and links to it.

    Raises:
        InvalidKey: it cannot be written; it is as it was.
    """
    try:
        real = path.resolve(strict=True)
        new = real.with_name(f".{real.name}.new")
        new.unlink(missing_ok=True)  # of a command that was killed
        write_with_mode_of(new, data, real)
        move_file(new, real)
    except OSError as failure:
        raise _file_error(path, "written", failure) from None


def write_with_mode_of(path: Path, data: bytes, model: Path) -> None:
    """Write a new file with mode and owner of another one. Raises OSError."""
    found = model.stat()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchown(descriptor, found.st_uid, found.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def move_file(source: Path, target: Path) -> None:
    """Put one file in the place of another, for good. Raises OSError."""
    source.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def link_old_file(path: Path, aside: Path) -> None:
    """Give a file a second name; it may have it already. Raises OSError."""
    try:
        aside.hardlink_to(path)
    except FileExistsError:
        if not aside.samefile(path):
            raise


def _file_error(path: Path, what: str, failure: OSError) -> InvalidKey:
    return InvalidKey(f"{path} cannot be {what}", cause=os.strerror(failure.errno or 0))
