"""Read and write key files.

A read never blocks on a FIFO or device. Private keys get mode 0600. A file that a server may read
at any time is replaced by a rename, so that no reader sees half of it.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentctl.errors import Conflict, InvalidKey

MAXIMUM_KEY_FILE = 1_048_576
"""The maximum size of a key file or JWKS in bytes; a larger file is rejected unread."""

_PRIVATE = 0o600
"""The mode of private keys: only the owner can read and write them."""


def read_key_file(path: Path, *, private: bool = False) -> bytes:
    """Read a regular file of at most MAXIMUM_KEY_FILE bytes.

    Args:
        path: the path of the file; links are followed.
        private: the file contains a secret, so its mode must not be wider than 0600.

    Raises:
        InvalidKey: the file is missing, unreadable, too large, not a regular file, or open to
            other users.
    """
    try:
        # Without O_NONBLOCK the open of a FIFO without a writer would block for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise InvalidKey(
            f"Key file {path} does not exist",
            hint="`agentctl keys generate` or `agentctl init` creates one",
        ) from None
    except OSError as failure:
        raise build_file_error(f"Key file {path} cannot be read", failure) from None
    except ValueError:
        raise InvalidKey("The path of the key file contains a NUL character") from None

    try:
        _check_file(path, os.fstat(descriptor), private)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAXIMUM_KEY_FILE + 1)
    except OSError as failure:
        raise build_file_error(f"Key file {path} cannot be read", failure) from None
    finally:
        os.close(descriptor)

    if len(data) > MAXIMUM_KEY_FILE:
        raise InvalidKey(f"Key file {path} is larger than {MAXIMUM_KEY_FILE} bytes")
    return data


def read_private_key(path: Path) -> bytes:
    """Read a signing key: PEM, or the secret of an HS algorithm.

    Raises:
        InvalidKey: see `read_key_file`; if other users can read the file, the hint is a `chmod`.
    """
    return read_key_file(path, private=True)


def write_private_key(path: Path, data: bytes) -> None:
    """Write a new file with mode 0600; a missing folder is created with mode 0700.

    Raises:
        InvalidKey: the file already exists or cannot be written; an incomplete file is removed.
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
        raise build_file_error(f"Key file {path} cannot be written", failure) from None


def _create_file(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failure:
        raise build_file_error(f"Key file {path} cannot be written", failure) from None

    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
    except FileExistsError:
        raise InvalidKey(
            f"Key file {path} already exists", hint="use another path; a key is never overwritten"
        ) from None
    except OSError as failure:
        raise build_file_error(f"Key file {path} cannot be written", failure) from None


def _check_file(path: Path, status: os.stat_result, private: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidKey(f"Key file {path} is not a regular file")
    if status.st_size > MAXIMUM_KEY_FILE:
        raise InvalidKey(f"Key file {path} is larger than {MAXIMUM_KEY_FILE} bytes")

    mode = stat.S_IMODE(status.st_mode)
    if private and mode & ~_PRIVATE:
        raise InvalidKey(
            f"Key file {path} has mode {mode:04o} and must not be wider than 0600",
            hint=f"chmod 600 {path}",
        )

    if mode & stat.S_IWOTH:
        raise InvalidKey(
            f"Key file {path} has mode {mode:04o}: all users can write it", hint=f"chmod o-w {path}"
        )


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, among the callers of this function.

    Raises:
        Conflict: another process has the lock.
        InvalidKey: the folder cannot be opened.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as failure:
        raise build_file_error(f"{folder} cannot be opened", failure) from None

    # The lock ends with the descriptor, also if the process is killed.
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"Another process changes the keys in {folder}") from None
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically; its mode, its owner and links to it stay.

    Raises:
        InvalidKey: the file cannot be written; it is unchanged.
    """
    try:
        real = path.resolve(strict=True)
        new = real.with_name(f".{real.name}.new")
        new.unlink(missing_ok=True)  # Left by a command that was killed.
        write_with_mode_of(new, data, real)
        move_file(new, real)
    except OSError as failure:
        raise build_file_error(f"{path} cannot be written", failure) from None


def write_with_mode_of(path: Path, data: bytes, model: Path) -> None:
    """Write a new file with the mode and owner of `model`. Raises OSError."""
    status = model.stat()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchown(descriptor, status.st_uid, status.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def move_file(source: Path, target: Path) -> None:
    """Rename a file, replace the target, and sync the folder. Raises OSError."""
    source.replace(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def link_old_file(path: Path, backup: Path) -> None:
    """Create a second link to a file, unless it already exists. Raises OSError."""
    try:
        backup.hardlink_to(path)
    except FileExistsError:
        if not backup.samefile(path):
            raise


def build_file_error(detail: str, failure: OSError) -> InvalidKey:
    """Build the error of a failed operation on a file, with the text of the system as the cause."""
    return InvalidKey(detail, cause=os.strerror(failure.errno or 0).lower())
