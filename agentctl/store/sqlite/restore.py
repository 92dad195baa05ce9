"""Restore of a SQLite file from a backup: a checked copy takes the place of the file.

The files that were there are moved aside, never deleted. The new file appears at its path by one
rename, when it is complete and on the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import apsw

from agentctl import errors
from agentctl.records.times import format_rfc3339, now
from agentctl.store.blobs import flush
from agentctl.store.schema import SCHEMA_VERSION, TABLES
from agentctl.store.sqlite.backup import CopiedRows, hash_rows, is_damaged
from agentctl.store.sqlite.connection import build_in_use, get_file_size, get_wal_path
from agentctl.store.sqlite.schema import build_in_memory, read_schema
from agentctl.store.sqlite.thread import run_on_thread

LOG_FILES = ("-wal", "-shm", "-journal")
"""The ends of the names of the files next to a database."""


async def restore(
    backup: Path,
    path: Path,
    prepare: Callable[[Path, CopiedRows], Awaitable[None]],
    *,
    replace: bool,
    report: Callable[[int], None],
) -> tuple[CopiedRows, Path | None]:
    """Put a copy of a backup in the place of a database; return its rows and the former file.

    Args:
        prepare: called with a copy of the backup and its rows; migrates and settles the copy. If
            it raises, nothing is changed.
        replace: True to move an existing database aside.
    """
    if os.path.lexists(path) and not replace:
        raise errors.Conflict(
            f"The database {path} already exists",
            hint="--replace moves it aside and restores the backup",
        )

    copy = path.with_name(f"{path.name}.restoring")
    log = get_wal_path(backup)
    if get_file_size(log):
        raise errors.Conflict(
            "The file is not a backup: a part of it is in a write-ahead log",
            cause=f"{log} has changes that would be lost; nothing was changed",
            hint="`agentctl db backup` creates a whole file from such a database",
        )

    with _copied(backup, copy):
        try:
            rows = await run_on_thread(
                copy, lambda connection, _: _check(connection, backup, report)
            )
        except errors.Unavailable as failure:
            # The failure names the copy, which the user does not know.
            raise errors.Unavailable(
                "The backup is damaged, or not an agentctl database",
                cause=f"{backup}; nothing was changed",
                hint="restore another one",
            ) from failure

        await prepare(copy, rows)

        # Write everything to the file itself, and empty its log.
        await run_on_thread(
            copy,
            lambda connection, _: connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE),
            writes=True,
        )
        flush(copy)
        moved = _put_in_place(copy, path)

    return rows, moved


@contextlib.contextmanager
def _copied(backup: Path, copy: Path) -> Iterator[None]:
    """Copy a backup, and hold a lock of the copy, so that another restore does not replace it."""
    try:
        # Without a wait for the writer of a FIFO.
        source = os.open(backup, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(source, "rb") as reader:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise errors.Conflict("The backup is not a regular file", cause=f"{backup}")

            target = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(target, "wb") as writer:
                _lock(target, copy)
                try:
                    # The log of a killed restore would become a part of this copy.
                    for file in _log_files(copy):
                        file.unlink(missing_ok=True)
                    writer.truncate()
                    shutil.copyfileobj(reader, writer)
                    writer.flush()
                    yield
                finally:
                    for file in (copy, *_log_files(copy)):
                        file.unlink(missing_ok=True)
    except OSError as error:
        is_backup = isinstance(error, (FileNotFoundError, IsADirectoryError))
        name = backup if is_backup else error.filename or copy
        raise errors.Unavailable(
            "The backup cannot be copied", cause=f"{name}: {os.strerror(error.errno or 0).lower()}"
        ) from None


def _lock(file: int, copy: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A restore that has just ended may have renamed the file, which is then the database.
        if os.path.samestat(os.fstat(file), copy.lstat()):
            return
    except (BlockingIOError, FileNotFoundError):
        pass
    raise errors.Conflict("Another restore works with the database", cause=f"it has locked {copy}")


def _check(connection: apsw.Connection, backup: Path, report: Callable[[int], None]) -> CopiedRows:
    """Check that a copy is an intact database of agentctl; return its rows."""
    objects = read_schema(connection)
    table_names = {name for kind, name in objects if kind == "table"}
    if not table_names >= TABLES or is_damaged(connection):
        raise errors.Unavailable("The backup is damaged")

    # Triggers and views execute code of the backup in the statements of the restore.
    expected = read_schema(build_in_memory(SCHEMA_VERSION))
    for kind, name in sorted(objects.keys() - expected.keys()):
        if kind in ("trigger", "view"):
            raise errors.Conflict(
                f"The backup has a {kind} that is not part of an agentctl database",
                cause=f"{kind} {name} in {backup}; nothing was changed",
                hint="restore another one",
            )

    return hash_rows(connection, report)


def _put_in_place(copy: Path, path: Path) -> Path | None:
    """Move the former files aside and rename the copy, while no process can open the database."""
    moment = format_rfc3339(now())[:19].replace("-", "").replace(":", "")
    name = f"{path.name}.before-{moment}Z"

    # A second restore in one second must not replace the files of the first.
    moved = path.with_name(name)
    number = 2
    while os.path.lexists(moved):
        moved = path.with_name(f"{name}-{number}")
        number += 1

    try:
        if not os.path.lexists(path):
            copy.rename(path)
            flush(path.parent)
            return None

        with _holding(path):
            for file in _log_files(path):
                if file.exists():
                    file.rename(moved.with_name(f"{moved.name}{file.name[len(path.name) :]}"))
            moved.hardlink_to(path)
            copy.replace(path)
            flush(path.parent)
    except OSError as error:
        cause = f"{path.parent}: {os.strerror(error.errno or 0).lower()}"
        raise errors.Unavailable("The database cannot be restored", cause=cause) from None

    return moved


@contextlib.contextmanager
def _holding(path: Path) -> Iterator[None]:
    """Hold the only connection to a database, with its log written to the file.

    A file that SQLite cannot open is damaged, or no database: then no process works with it.
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        try:
            # Leaving the write-ahead log needs that no other process has the file open.
            connection.pragma("journal_mode", "DELETE")
            connection.execute("BEGIN EXCLUSIVE")
        except (apsw.BusyError, apsw.LockedError):
            raise build_in_use(path) from None
        except (apsw.CorruptError, apsw.NotADBError, apsw.IOError):
            pass

        yield
    finally:
        connection.close(True)


def _log_files(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}{end}") for end in LOG_FILES]
