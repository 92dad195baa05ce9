"""A SQLite file as the filesystem shows it, before SQLite is asked: what it would spoil or hide.

It takes an empty file, and one of a byte, for a new database, and opens a file whose log is gone.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from agentctl import errors

__all__ = [
    "add_path",
    "build_cannot_create",
    "build_emptied",
    "build_no_database",
    "build_not_ours",
    "check_file",
    "get_file_size",
    "get_lock_folder",
    "get_wal_path",
    "has_been_used",
]

_MAGIC = b"SQLite format 3\x00"

_HEADER_BYTES = 100
"""The header of the file: https://www.sqlite.org/fileformat2.html#the_database_header"""


def check_file(path: Path, *, create: bool) -> None:
    """Say plainly what is wrong with a file, and refuse one that has lost what it held.

    Args:
        path: the file.
        create: whether it may be made when it is not there.

    Raises:
        Unavailable: it cannot be a database, is damaged, or is not there and may not be made.
    """
    if path.is_dir():
        raise errors.Unavailable("The database cannot be opened", cause=f"{path} is a directory")
    if path.exists():
        _check_header(path)
        _check_wal(path)
        return
    _check_orphaned_wal(path)
    if not create:
        raise build_no_database(path)
    if not path.parent.is_dir():
        raise errors.Unavailable(
            "The database cannot be created",
            cause=f"the folder {path.parent} does not exist",
            hint="make the folder, or change [[databases]] url",
        )


def get_lock_folder(path: Path) -> Path:
    """The folder for lock files of processes, beside the file itself, whatever links lead to it."""
    real = path.resolve()
    return real.with_name(f"{real.name}.workers")


def has_been_used(path: Path) -> bool:
    """Whether processes have worked with the file, so that there was something in it."""
    return get_lock_folder(path).is_dir()


def get_wal_path(path: Path) -> Path:
    """The write-ahead log of a file, beside it."""
    real = path.resolve()
    return real.with_name(f"{real.name}-wal")


def get_file_size(path: Path) -> int:
    """Bytes of a file; 0 when it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _check_header(path: Path) -> None:
    """Refuse what does not begin as a database, and what is shorter than its header says."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise errors.Unavailable(
            "The database cannot be opened",
            cause=f"{path}: {os.strerror(error.errno or 0)}",
            hint="check the permissions of the file",
        ) from None
    if header and header[: len(_MAGIC)] != _MAGIC:
        raise errors.Unavailable(
            "The file is not a database",
            cause=f"{path} holds something else; it was left as it is",
            hint="name another file in [[databases]] url",
        )
    whole = _expected_size(header)
    # A checkpoint writes the header first; until it ends, the rest is in the log. The size is read
    # again behind the log, which may have gone because it has ended.
    logs = get_file_size(get_wal_path(path)) + get_file_size(path.with_name(f"{path.name}-journal"))
    if get_file_size(path) < whole and not logs and get_file_size(path) < whole:
        raise errors.Unavailable(
            "The database is damaged",
            cause=f"{path} has {get_file_size(path)} of its {whole} bytes",
            hint="restore it from a backup",
        )


def _expected_size(header: bytes) -> int:
    """What a file should have at least, by its header; 0 where that does not say."""
    if len(header) < _HEADER_BYTES or header[24:28] != header[92:96]:
        return 0
    page_size = int.from_bytes(header[16:18], "big")
    return (65536 if page_size == 1 else page_size) * int.from_bytes(header[28:32], "big")


def _check_wal(path: Path) -> None:
    """Refuse a file whose log was taken away: what was committed last was in there.

    SQLite makes the log before its index and removes it after it, so that an index without a log,
    seen twice, has lost it.
    """
    log = get_wal_path(path)
    index = log.with_name(f"{log.name.removesuffix('wal')}shm")
    if all(index.exists() and not log.exists() for _ in range(2)):
        raise errors.Unavailable(
            "The database has lost its log",
            cause=f"{log} is gone, and what was written last with it",
            hint=f"restore it from a backup; to go on without: rm {shlex.quote(str(index))}",
        )


def _check_orphaned_wal(path: Path) -> None:
    """Refuse to make a file whose log is still there: SQLite would remove the log."""
    log = get_wal_path(path)
    if get_file_size(log):
        raise errors.Unavailable(
            "The database's file is gone, and its log is not",
            cause=f"{path} is not there, {log} is",
            hint=f"put the file back, or a backup; to begin anew: rm {shlex.quote(str(log))}",
        )


def build_no_database(path: Path) -> errors.Unavailable:
    """The refusal of what is not there."""
    return errors.Unavailable(
        "There is no database yet",
        cause=f"{path} is not there",
        hint="`agentctl serve` creates it",
    )


def build_emptied(path: Path) -> errors.Unavailable:
    """The refusal of an empty file that was a database."""
    locks = shlex.quote(str(get_lock_folder(path)))
    return errors.Unavailable(
        "The database is empty, and was not",
        cause=f"{path} holds nothing, but was used before",
        hint=f"restore it from a backup; to begin anew: rm -r {locks}",
    )


def build_not_ours(path: Path) -> errors.Unavailable:
    """The refusal of another program's database."""
    return errors.Unavailable(
        "The file is not an agentctl database",
        cause=f"{path} holds something else; it was left as it is",
        hint="name another file in [[databases]] url",
    )


def build_cannot_create(path: Path, error: OSError) -> errors.Unavailable:
    """The refusal of a place where no file can be made."""
    return errors.Unavailable(
        "The database cannot be created",
        cause=f"{path}: {os.strerror(error.errno or 0)}",
        hint="check the permissions of the folder",
    )


def add_path(error: errors.AgentctlError, path: Path) -> errors.AgentctlError:
    """The same failure, its cause naming the file: at the start that is what a user can mend."""
    if isinstance(error, errors.Unavailable) and error.cause and str(path) not in error.cause:
        return errors.Unavailable(error.detail, cause=str(path), hint=error.hint)
    return error
