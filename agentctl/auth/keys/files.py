"""Key files: read without hanging on what is no file, written for the owner's eyes only."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from agentctl.errors import InvalidKey

__all__ = [
    "MAXIMUM_KEY_FILE",
    "read_key_file",
    "read_private_key",
    "write_private_key",
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
        raise _unreadable(path, failure) from None
    except ValueError:
        raise InvalidKey("The name of the key file holds a NUL character") from None
    try:
        _check_file(path, os.fstat(descriptor), private)
        return _read(descriptor, path)
    except OSError as failure:
        raise _unreadable(path, failure) from None
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: Path) -> bytes:
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
    descriptor = _new_file(path)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except OSError as failure:
        with suppress(OSError):
            path.unlink()
        raise _unwritable(path, failure) from None


def _new_file(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failure:
        raise _unwritable(path, failure) from None
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
    except FileExistsError:
        raise InvalidKey(
            f"Key file {path} exists already", hint="name another file; a key is never overwritten"
        ) from None
    except OSError as failure:
        raise _unwritable(path, failure) from None


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


def _unreadable(path: Path, failure: OSError) -> InvalidKey:
    if isinstance(failure, FileNotFoundError):
        return InvalidKey(
            f"Key file {path} does not exist",
            hint="`agentctl keys generate` or `agentctl init` makes one",
        )
    return InvalidKey(f"Key file {path} cannot be read", cause=os.strerror(failure.errno or 0))


def _unwritable(path: Path, failure: OSError) -> InvalidKey:
    return InvalidKey(f"Key file {path} cannot be written", cause=os.strerror(failure.errno or 0))
