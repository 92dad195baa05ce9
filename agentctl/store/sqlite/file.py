"""Checks of a SQLite file before SQLite opens it and while it is open, and the errors for them.

SQLite treats an empty file, or one of a single byte, as a new database, and opens a file whose
write-ahead log is missing. It continues to use a file that was deleted or moved away. These checks
reject such files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from agentctl import errors
from agentctl.records.logs import RateLimitedLog

_MAGIC = b"SQLite format 3\x00"

_HEADER_BYTES = 100
"""The header of the file: https://www.sqlite.org/fileformat2.html#the_database_header"""

CHECK_SECONDS = 1.0
"""Maximum time until a read notices that the file is no longer at its path."""

_log = RateLimitedLog(logging.getLogger("agentctl.store"), level=logging.ERROR)

_MOVED = (
    "The database file was deleted or moved away",
    "move it back, or stop the server and restore a backup",
)

_REPLACED = ("The database file was replaced", "restart the server to use the new file")


class OpenFile:
    """The file of an open database.

    Changes to a file that is no longer at its path are lost when its last process closes it. So a
    write checks the path before it begins, and a read at most every `CHECK_SECONDS`. A file that is
    moved back can be used again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = _identify(path)
        self._next_check = 0.0

    def check(self) -> None:
        """Check that the path still names the file that was opened.

        Raises:
            Unavailable: the file was deleted, moved away or replaced.
        """
        identity = _identify(self.path)
        if identity is not None and identity == self._identity:
            self._next_check = time.monotonic() + CHECK_SECONDS
            return
        self._next_check = 0.0
        detail, hint = _MOVED if identity is None else _REPLACED
        _log.log("%s: %s", detail, self.path)
        raise errors.Unavailable(detail, cause=str(self.path), hint=hint)

    def check_sometimes(self) -> None:
        """Do the same as `check`, at most every `CHECK_SECONDS` while the file is in its place."""
        if time.monotonic() >= self._next_check:
            self.check()

    def connect(self, open_connection: Callable[[Path], apsw.Connection]) -> apsw.Connection:
        """Open a connection to this file and no other.

        Raises:
            Unavailable: as `check`.
            apsw.Error: the file cannot be opened.
        """
        self.check()
        connection = open_connection(self.path)
        try:
            self.check()
        except BaseException:
            connection.close(True)
            raise
        return connection


def _identify(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_file(path: Path, *, create: bool) -> None:
    """Check that a file can be a database and has not lost its content.

    Raises:
        Unavailable: the file is no database, is damaged, or is missing and may not be created.
    """
    # Read before the file is looked for: the process that creates it creates the folder later.
    used = has_been_used(path)
    if path.is_dir():
        raise errors.Unavailable("The database cannot be opened", cause=f"{path} is a directory")
    if path.exists():
        _check_header(path)
        _check_wal(path)
        return
    log = get_wal_path(path)
    if get_file_size(log):
        raise errors.Unavailable(
            "The database file is missing, but its log exists",
            cause=f"{path} does not exist, but {log} does",
            hint=f"restore the file or a backup; for an empty database: rm {shlex.quote(str(log))}",
        )
    if used:
        locks = shlex.quote(str(get_lock_folder(path)))
        raise errors.Unavailable(
            "The database file is missing",
            cause=f"{path} does not exist, but was used before",
            hint=f"move it back, or restore a backup; for an empty database: rm -r {locks}",
        )
    if not create:
        raise build_no_database(path)
    if not path.parent.is_dir():
        raise errors.Unavailable(
            "The database cannot be created",
            cause=f"the folder {path.parent} does not exist",
            hint="create the folder, or change [[databases]] url",
        )


def get_lock_folder(path: Path) -> Path:
    """Return the folder for lock files, next to the real file if the path is a link."""
    real = path.resolve()
    return real.with_name(f"{real.name}.workers")


def has_been_used(path: Path) -> bool:
    """Return True if processes have used the file, so that it had content."""
    return get_lock_folder(path).is_dir()


def mark_as_used(path: Path) -> None:
    """Create the folder for lock files, also of a database without workers.

    If the folder of the file is read-only, the first write reports it.
    """
    with contextlib.suppress(OSError):
        get_lock_folder(path).mkdir(mode=0o700, exist_ok=True)


def get_wal_path(path: Path) -> Path:
    """Return the path of the write-ahead log, next to the real file."""
    real = path.resolve()
    return real.with_name(f"{real.name}-wal")


def get_file_size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _check_header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise errors.Unavailable(
            "The database cannot be opened",
            cause=f"{path}: {os.strerror(error.errno or 0).lower()}",
            hint="check the permissions of the file",
        ) from None
    if header and header[: len(_MAGIC)] != _MAGIC:
        raise errors.Unavailable(
            "The file is not a database",
            cause=f"{path} contains something else; it was not changed",
            hint="name another file in [[databases]] url",
        )
    whole = _expected_size(header)
    # A checkpoint writes the header first; until it ends, the rest is in the log. The size is read
    # again after the log, because the log may be gone after the checkpoint.
    logs = get_file_size(get_wal_path(path)) + get_file_size(path.with_name(f"{path.name}-journal"))
    if get_file_size(path) < whole and not logs and get_file_size(path) < whole:
        raise errors.Unavailable(
            "The database is damaged",
            cause=f"{path} has {get_file_size(path)} of its {whole} bytes",
            hint="restore it from a backup",
        )


def _expected_size(header: bytes) -> int:
    if len(header) < _HEADER_BYTES or header[24:28] != header[92:96]:
        return 0
    page_size = int.from_bytes(header[16:18], "big")
    return (65536 if page_size == 1 else page_size) * int.from_bytes(header[28:32], "big")


def _check_wal(path: Path) -> None:
    """Reject a file whose log was removed: the last commits were in it.

    SQLite creates the log before its index and removes it after the index. So an index without a
    log, seen twice, has lost the log.
    """
    log = get_wal_path(path)
    index = log.with_name(f"{log.name.removesuffix('wal')}shm")
    if all(index.exists() and not log.exists() for _ in range(2)):
        raise errors.Unavailable(
            "The database has lost its log",
            cause=f"{log} is missing, and the last changes with it",
            hint="restore it from a backup, or continue without the lost changes:"
            f" rm {shlex.quote(str(index))}",
        )


def build_no_database(path: Path) -> errors.Unavailable:
    """Build the error for a missing database."""
    return errors.Unavailable(
        "There is no database yet",
        cause=f"{path} does not exist",
        hint="`agentctl serve` creates it",
    )


def build_emptied(path: Path) -> errors.Unavailable:
    """Build the error for an empty file that was a database."""
    locks = shlex.quote(str(get_lock_folder(path)))
    return errors.Unavailable(
        "The database has lost its content",
        cause=f"{path} is empty, but was used before",
        hint=f"restore it from a backup; for an empty database: rm -r {locks}",
    )


def add_path(error: errors.AgentctlError, path: Path) -> errors.AgentctlError:
    """Return the error with the file in its cause, which helps more than an id at the start.

    SQLite reports a folder that cannot be written as a file that cannot be opened.
    """
    if isinstance(error, errors.Unavailable) and not os.access(path.resolve().parent, os.W_OK):
        return errors.Unavailable(
            "The database is read-only",
            cause=f"{path.resolve().parent} cannot be written",
            hint="check its permissions, and that its file system is not mounted read-only",
        )
    if isinstance(error, errors.Unavailable) and error.cause and str(path) not in error.cause:
        return errors.Unavailable(error.detail, cause=str(path), hint=error.hint)
    return error
