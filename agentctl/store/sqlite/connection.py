"""A SQLite file, the connections to it, how a unit runs on one, and the errors.

Only one thread may use a connection at a time; apsw refuses other use.

SQLite treats an empty file, or one of a single byte, as a new database, and opens a file whose
write-ahead log is missing. It continues to use a file or a log that was deleted or moved away, and
the pages that it has in memory of a file that was overwritten. The checks before a file is opened
and while it is open reject such files.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw

from agentctl import errors
from agentctl.records.logs import RateLimitedLog
from agentctl.store.database import SecondStatement, Work, compile_for_sqlite
from agentctl.store.search import has_beginnings

T = TypeVar("T")

log = logging.getLogger("agentctl.store")
_limited_log = RateLimitedLog(log, level=logging.ERROR)

_MAGIC = b"SQLite format 3\x00"

_HEADER_BYTES = 100
"""The header of the file: https://www.sqlite.org/fileformat2.html#the_database_header"""

CHECK_SECONDS = 1.0
"""Maximum time until a read notices that the file is no longer at its path."""

_MOVED = (
    "The database file was deleted or moved away",
    "move it back, or stop the server and restore a backup",
)

_REPLACED = ("The database file was replaced", "restart the server to use the new file")

_LOST_LOG = (
    "The database has lost its log",
    "put it back, or stop the server, which then writes the log into the file as far as it has it",
)

WAIT_MILLISECONDS = 5_000
"""Maximum wait of a writer, or of a reader on a thread, for the lock of another process."""

ALONE_WAIT_MILLISECONDS = 1_000
"""Maximum wait for the end of all other processes with the file: a short command may be one."""

LOOP_WAIT_MILLISECONDS = 500
"""Maximum wait of a read on the event loop. In WAL mode only a recovery blocks a reader."""

STATEMENTS = 256
"""Prepared statements that a connection keeps: more than the repositories use at a time."""

WAL_BYTES = 64 * 1024 * 1024
"""Maximum size of the write-ahead log after a checkpoint, if a long read has let it grow."""

PAUSES = ((0.02, 0.002), (0.05, 0.001), (1.0, 0.0003), (float("inf"), 0.005))
"""Pauses between two attempts to get a lock: (seconds waited at most, seconds of the pause).

A process that has waited longer tries more often, and so gets the lock sooner. The pauses of SQLite
itself become longer, so that under load the process that has waited longest continues to wait. A
lock that is held for more than a second is not worth many attempts.
"""

CHECKPOINT_PAGES = 1_000
"""Pages in the write-ahead log at which it is written to the file: 4 MB."""

RESTART_PAGES = 4_000
"""Pages in the write-ahead log at which other processes wait until it restarts.

While several processes write and read, it would otherwise grow without limit, because the file
never has all of it when the next process writes.
"""

RESTART_SECONDS = 0.05
"""Maximum duration of that wait. A long read prevents the restart in any case."""

_FAILURES: dict[type[Exception], tuple[str, str]] = {
    apsw.BusyError: ("The database is busy", "another process holds its lock; try again"),
    apsw.InterruptError: ("The database takes too long", "request less at once"),
    apsw.FullError: ("The database disk is full", "free some space"),
    apsw.IOError: (
        "The database cannot be read or written",
        "check the disk and the permissions of the file and its folder",
    ),
    apsw.CorruptError: (
        "The database is damaged",
        "run `agentctl doctor --db`, and restore the database from a backup",
    ),
    apsw.NotADBError: ("The file is not a database", "name another file in [[databases]] url"),
    apsw.ReadOnlyError: (
        "The database is read-only",
        "check the permissions of the file and its folder",
    ),
    apsw.CantOpenError: (
        "The database cannot be opened",
        "check that the folder exists and the permissions of the file",
    ),
}

_FAULTS = (
    apsw.SQLError,
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.BindingsError,
    apsw.MisuseError,
    apsw.RangeError,
    apsw.ThreadingViolationError,
)
"""Errors of a wrong statement in this package: no user can repair them."""


class BusyHandler:
    """A SQLite busy handler that waits for a lock for at most a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = 0.0

    def __call__(self, attempts: int) -> bool:
        present = time.monotonic()
        if attempts == 0:
            self._began = present
        waited = present - self._began
        if waited >= self.seconds:
            return False
        time.sleep(next(pause for until, pause in PAUSES if waited < until))
        return True


def keep_wal_short(connection: apsw.Connection, busy_handler: BusyHandler) -> None:
    """Checkpoint the write-ahead log after commits, and let it restart when it is long."""
    attempted_pages = 0

    def checkpoint(connection: apsw.Connection, name: str, pages: int) -> int:
        nonlocal attempted_pages
        if pages < CHECKPOINT_PAGES:
            attempted_pages = 0
            return apsw.SQLITE_OK

        # A checkpoint that fails is repeated after one of the next commits. If the disk is the
        # cause, the next write fails as well and reports it.
        with contextlib.suppress(apsw.Error):
            # A long read, such as the read of a backup, makes every attempt to restart the log wait
            # in vain: the longer the log, the rarer the attempts.
            if pages < max(RESTART_PAGES, attempted_pages * 3 // 2):
                connection.wal_checkpoint(name, apsw.SQLITE_CHECKPOINT_PASSIVE)
            else:
                attempted_pages = pages

                usual_seconds = busy_handler.seconds
                busy_handler.seconds = RESTART_SECONDS
                try:
                    connection.wal_checkpoint(name, apsw.SQLITE_CHECKPOINT_RESTART)
                finally:
                    busy_handler.seconds = usual_seconds

        return apsw.SQLITE_OK

    connection.set_wal_hook(checkpoint)


def to_public_error(error: apsw.Error, name: str) -> errors.AgentctlError:
    """Return the error for a caller, and log the text of apsw.

    Returns:
        Unavailable, or InternalError for a fault of this package.
    """
    if isinstance(error, _FAULTS):
        log.error("database %s: %s: %s", name, type(error).__name__, error)
        return errors.InternalError()

    # The cause of an outage fails every request: the log must not repeat it for each.
    _limited_log.log("database %s: %s: %s", name, type(error).__name__, error)

    for kind, (detail, hint) in _FAILURES.items():
        if isinstance(error, kind):
            is_damaged = kind in (apsw.CorruptError, apsw.NotADBError)
            error_class = errors.DatabaseDamaged if is_damaged else errors.Unavailable
            return error_class(detail, cause=f"database {name!r}", hint=hint)

    return errors.Unavailable("The database failed", cause=f"database {name!r}")


def connect_reader(path: Path, *, on_loop: bool = False) -> apsw.Connection:
    """Open a connection that refuses to write. The file must exist.

    The connection does not map the file into memory: a failed read must be an error, not a signal
    that ends the process (decision 29).

    Args:
        on_loop: True for a connection of the event loop, which waits for less time.
    """
    connection = _connect(path, LOOP_WAIT_MILLISECONDS if on_loop else WAIT_MILLISECONDS)
    connection.create_scalar_function("has_beginnings", has_beginnings, 2, deterministic=True)
    connection.pragma("query_only", True)
    return connection


def connect_writer(path: Path, busy_handler: BusyHandler | None = None) -> apsw.Connection:
    """Open a connection for writing that is durable at each commit. The file must exist.

    The journal mode is a property of the file; `schema.create_file` sets it.
    """
    connection = _connect(path, WAIT_MILLISECONDS)
    connection.pragma("synchronous", "FULL")
    connection.pragma("foreign_keys", True)
    connection.pragma("journal_size_limit", WAL_BYTES)
    busy_handler = busy_handler or BusyHandler(WAIT_MILLISECONDS / 1_000)
    connection.set_busy_handler(busy_handler)
    keep_wal_short(connection, busy_handler)
    return connection


def connect_alone(path: Path) -> apsw.Connection:
    """Open a connection in a transaction. No other process can open the file until it is closed.

    The file itself is not changed by the locks, and the kernel frees them if this process dies.

    Raises:
        Conflict: another process has the file open.
    """
    connection = _connect(path, ALONE_WAIT_MILLISECONDS)
    try:
        # Before the first access: SQLite then locks the file instead of the index of its log, and
        # each open connection of another process has a shared lock of the file.
        connection.pragma("locking_mode", "EXCLUSIVE")
        connection.pragma("synchronous", "FULL")
        connection.pragma("foreign_keys", True)
        connection.execute("BEGIN EXCLUSIVE")
    except (apsw.BusyError, apsw.LockedError):
        connection.close(True)
        raise build_in_use(path) from None
    except BaseException:
        connection.close(True)
        raise

    return connection


def _connect(path: Path, wait: int) -> apsw.Connection:
    connection = apsw.Connection(
        str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=STATEMENTS
    )
    # Without this, SQLite prepares a statement again for each execution if a partial index could
    # depend on its parameters. Statements name the conditions of partial indexes as literals.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.set_busy_timeout(wait)
    return connection


def run_unit(connection: apsw.Connection, work: Work[T], *, alone: bool = False) -> T:
    """Run a unit. After a failure in a transaction the caller rolls back.

    Args:
        alone: set outside a transaction.

    Raises:
        ValidationFailed: a value is text that no database stores (docs/contract.md "Requests").
        SecondStatement: the unit is `alone` and has a second statement.
    """
    steps = iter(work)
    send = steps.send
    rows: Any = None

    try:
        while True:
            sql, parameters = send(rows)
            if alone and rows is not None:
                raise SecondStatement("a single unit has a second statement")
            rows = connection.execute(compile_for_sqlite(sql), parameters).fetchall()
    except StopIteration as end:
        result: T = end.value
        return result
    except UnicodeEncodeError:
        raise errors.ValidationFailed("Text must not contain NUL or lone surrogates") from None
    finally:
        steps.close()


def run_unit_on_snapshot(connection: apsw.Connection, work: Work[T]) -> T:
    """Run a unit that reads, in a transaction: all its statements see the same state."""
    connection.execute("BEGIN")
    try:
        return run_unit(connection, work)
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")


class OpenFile:
    """The file of an open database, and its log.

    Changes to a file or a log that is no longer at its path are lost when its last process closes
    it, or is killed. So a write checks the paths before it begins, and a read at most every
    `CHECK_SECONDS`. A file that is moved back can be used again.

    The same checks look at the beginning of the file and at its size: SQLite reads a page that it
    has in memory, or in the log, without the file. A server would start runs for a file that was
    overwritten, and could never read them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Each write looks at it several times: a path would be converted to a text each time.
        self._name = str(path)
        self._identity = _identify(self._name)
        # The log and its index, as they were when the first connection had opened them.
        self._logs: dict[str, tuple[int, int] | None] = {}
        # The largest size of the file that was seen.
        self._size = 0
        self._has_content = False
        self._next_check = 0.0
        # The writer and the readers check on their threads.
        self._lock = threading.Lock()

    def check(self, connection: apsw.Connection | None = None) -> None:
        """Check that the path still names the file that was opened, and the same log.

        Args:
            connection: a connection to the file; None not to check its content.

        Raises:
            Unavailable: the file or its log was deleted, moved away or replaced.
            DatabaseDamaged: the file was overwritten, or is cut off.
        """
        self._next_check = 0.0
        status = _read_status(self._name)
        if status is None:
            raise self._refuse(*_MOVED)
        if (status.st_dev, status.st_ino) != self._identity:
            raise self._refuse(*_REPLACED)

        # While a process has a connection that has read, no other process removes the log: SQLite
        # removes it with the last connection of all processes.
        for name, log_identity in self._logs.items():
            if _identify(name) != log_identity:
                raise self._refuse(*_LOST_LOG)

        if connection is not None:
            with self._lock:
                self._check_content(connection, status.st_size)

        self._next_check = time.monotonic() + CHECK_SECONDS

    def check_sometimes(self, connection: apsw.Connection | None = None) -> None:
        """Call `check`, at most every `CHECK_SECONDS` while the file is in its place."""
        if time.monotonic() >= self._next_check:
            self.check(connection)

    def connect(self, open_connection: Callable[[Path], apsw.Connection]) -> apsw.Connection:
        """Open a connection to this file and no other.

        Raises:
            Unavailable: as `check`.
            apsw.Error: the file cannot be opened or read.
        """
        self.check()
        connection = open_connection(self.path)
        try:
            # SQLite opens the log, and creates it if it is missing, at the first read.
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()

            with self._lock:
                if not self._logs:
                    log = get_wal_path(self.path)
                    names = (str(log), str(_get_index_path(log)))
                    self._logs = {name: _identify(name) for name in names}

            self.check(connection)
        except BaseException:
            connection.close(True)
            raise

        return connection

    def forget_log(self) -> None:
        """Forget which log belongs to the file, until the next connection opens one.

        To be called when a connection was closed that may have been the last one.
        """
        with self._lock:
            self._logs = {}

    def _check_content(self, connection: apsw.Connection, size: int) -> None:
        # Read by the connection: to open and close the file here would end the locks that SQLite
        # has on it (https://www.sqlite.org/howtocorrupt.html 2.2).
        _, header = connection.read("main", 0, 0, _HEADER_BYTES)
        if header[: len(_MAGIC)] == _MAGIC:
            self._has_content = True
        elif self._has_content:
            raise self._refuse_damaged("its beginning was overwritten or cut off")
        else:
            # It was empty or no database when it was opened, which SQLite reports.
            return

        if not self._is_cut(size, header):
            return
        # Again, because a checkpoint of another process may have grown the file in between.
        size = get_file_size(self.path)
        _, header = connection.read("main", 0, 0, _HEADER_BYTES)
        if self._is_cut(size, header):
            raise self._refuse_damaged("its end was cut off")

    def _is_cut(self, size: int, header: bytes) -> bool:
        """Return True if the file is shorter than before, and than its header says.

        A checkpoint writes the header first: a file that grows may be shorter than its header says.
        """
        if size < self._size and size < _read_expected_size(header):
            return True
        self._size = size
        return False

    def _refuse(self, detail: str, hint: str) -> errors.Unavailable:
        _limited_log.log("%s: %s", detail, self.path)
        return errors.Unavailable(detail, cause=str(self.path), hint=hint)

    def _refuse_damaged(self, reason: str) -> errors.DatabaseDamaged:
        detail, hint = _FAILURES[apsw.CorruptError]
        _limited_log.log("%s: %s: %s", detail, self.path, reason)
        return errors.DatabaseDamaged(detail, cause=f"{self.path}: {reason}", hint=hint)


def _identify(name: str) -> tuple[int, int] | None:
    """Return the numbers of the device and of the file; None if it does not exist."""
    status = _read_status(name)
    return None if status is None else (status.st_dev, status.st_ino)


def _read_status(name: str) -> os.stat_result | None:
    try:
        return os.stat(name)  # noqa: PTH116 - a text
    except OSError:
        return None


def check_file(path: Path, *, create: bool) -> None:
    """Check that a file can be a database and has not lost its content.

    Raises:
        Unavailable: the file is no database, is damaged, or is missing and may not be created.
    """
    # Read before the file is looked for: the process that creates it creates the folder later.
    was_used = has_been_used(path)

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

    if was_used:
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


def _get_index_path(log: Path) -> Path:
    """Return the path of the index of a write-ahead log."""
    return log.with_name(f"{log.name.removesuffix('wal')}shm")


def get_file_size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _check_header(path: Path) -> None:
    try:
        header = _read_header(path)
    except apsw.Error:
        reason = "the file cannot be read"
        if not os.access(path, os.R_OK):
            reason = os.strerror(errno.EACCES).lower()
        raise errors.Unavailable(
            "The database cannot be opened",
            cause=f"{path}: {reason}",
            hint="check the permissions of the file",
        ) from None

    if header and header[: len(_MAGIC)] != _MAGIC:
        raise errors.Unavailable(
            "The file is not a database",
            cause=f"{path} contains something else; it was not changed",
            hint="name another file in [[databases]] url",
        )

    expected_size = _read_expected_size(header)
    # A checkpoint writes the header first; until it ends, the rest is in the log. The size is read
    # again after the log, because the log may be gone after the checkpoint.
    is_short = get_file_size(path) < expected_size
    log_bytes = get_file_size(get_wal_path(path))
    log_bytes += get_file_size(path.with_name(f"{path.name}-journal"))
    if is_short and not log_bytes and get_file_size(path) < expected_size:
        raise errors.Unavailable(
            "The database is damaged",
            cause=f"{path} has {get_file_size(path)} of its {expected_size} bytes",
            hint="restore it from a backup",
        )


def _read_header(path: Path) -> bytes:
    """Return the header of a file, or the part of it that a shorter file has.

    By the file layer of SQLite: the system releases all locks of a process on a file when the
    process closes any descriptor of it (fcntl). If Python closed one, a database that this process
    has open already would lose its lock, and the next program to close it would delete its log.
    """
    flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY
    # The file layer follows no link.
    file = apsw.VFSFile("", str(path.resolve()), [flags, 0])
    try:
        return file.xRead(_HEADER_BYTES, 0)
    finally:
        file.xClose()


def _read_expected_size(header: bytes) -> int:
    """Return the size of a file in bytes by its header; 0 if the header does not have it."""
    # The number of pages is valid if the two change counters are equal.
    if len(header) < _HEADER_BYTES or header[24:28] != header[92:96]:
        return 0

    page_size = int.from_bytes(header[16:18], "big")
    if page_size == 1:
        # Two bytes cannot hold the largest size.
        page_size = 65_536
    page_count = int.from_bytes(header[28:32], "big")
    return page_size * page_count


def _check_wal(path: Path) -> None:
    """Reject a file whose log was removed: the last commits were in it.

    SQLite creates the log before its index and removes it after the index. So an index without a
    log, seen twice, has lost the log.
    """
    log = get_wal_path(path)
    index = _get_index_path(log)

    def lacks_log() -> bool:
        return index.exists() and not log.exists()

    if lacks_log() and lacks_log():
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


def build_in_use(path: Path) -> errors.Conflict:
    """Build the error for a file that another process has open, and that must not be used."""
    return errors.Conflict(
        "A process works with the database",
        cause=f"{path} was not changed",
        hint="stop its servers first; `fuser` names the processes of a file",
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
