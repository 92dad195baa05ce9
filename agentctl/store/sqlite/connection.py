"""Connections to a SQLite file: their setup, how a unit runs on one, and the errors.

Only one thread may use a connection at a time; apsw refuses other use.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import TypeVar, cast

import apsw

from agentctl import errors
from agentctl.records.logs import RateLimitedLog
from agentctl.store.database import Row, SecondStatement, Work, compile_for_sqlite

T = TypeVar("T")

log = logging.getLogger("agentctl.store")
_limited_log = RateLimitedLog(log, level=logging.ERROR)

WAIT_MILLISECONDS = 5_000
"""Maximum wait of a writer, or of a reader on a thread, for the lock of another process."""

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

_SEARCH_TERMS = (
    "CREATE VIRTUAL TABLE temp.search_terms USING fts5vocab (main, search_words, instance)"
)

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
        "run `agentctl db check`, and restore the database from a backup",
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

MOVED_TEXT, MOVING_TEXT = "agentctl: the database has moved", "agentctl: the database moves"
"""The texts of the triggers of a copy that refuse writes (`store.copying`)."""

_REFUSALS = {
    MOVED_TEXT: (
        "The database has moved: the server must be started with the new one",
        "db status names the new place",
    ),
    MOVING_TEXT: ("The database moves to another place: no run starts until then", None),
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
            # A long read, such as that of a backup, makes every attempt to restart the log wait in
            # vain: the longer the log, the rarer the attempts.
            if pages < max(RESTART_PAGES, attempted_pages * 3 // 2):
                connection.wal_checkpoint(name, apsw.SQLITE_CHECKPOINT_PASSIVE)
            else:
                attempted_pages = pages
                usual, busy_handler.seconds = busy_handler.seconds, RESTART_SECONDS
                try:
                    connection.wal_checkpoint(name, apsw.SQLITE_CHECKPOINT_RESTART)
                finally:
                    busy_handler.seconds = usual
        return apsw.SQLITE_OK

    connection.set_wal_hook(checkpoint)


def to_public_error(error: apsw.Error, name: str) -> errors.AgentctlError:
    """Return the error for a caller, and log the text of apsw.

    Returns:
        Unavailable or DatabaseMoved, or InternalError for a fault of this package.
    """
    if isinstance(error, apsw.ConstraintError):
        for text, (detail, hint) in _REFUSALS.items():
            if text in str(error):
                return errors.DatabaseMoved(detail, hint=hint)
    if isinstance(error, _FAULTS):
        log.error("database %s: %s: %s", name, type(error).__name__, error)
        return errors.InternalError()
    # The cause of an outage fails every request: the log must not repeat it for each.
    _limited_log.log("database %s: %s: %s", name, type(error).__name__, error)
    for kind, (detail, hint) in _FAILURES.items():
        if isinstance(error, kind):
            return errors.Unavailable(detail, cause=f"database {name!r}", hint=hint)
    return errors.Unavailable("The database failed", cause=f"database {name!r}")


def connect_reader(path: Path, *, on_loop: bool = False, searches: bool = False) -> apsw.Connection:
    """Open a connection that refuses to write. The file must exist.

    The connection does not map the file into memory: a failed read must be an error, not a signal
    that ends the process (docs/decisions/0029).

    Args:
        on_loop: True for a connection of the event loop, which waits for less time.
        searches: True to add the temporary table `search_terms`, with the words of the index.
    """
    connection = _connect(path, LOOP_WAIT_MILLISECONDS if on_loop else WAIT_MILLISECONDS)
    if searches:
        connection.execute(_SEARCH_TERMS)
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
    rows: list[Row] | None = None
    try:
        while True:
            sql, parameters = send(cast("list[Row]", rows))
            if alone and rows is not None:
                raise SecondStatement("a single unit has a second statement")
            rows = cast(
                "list[Row]", connection.execute(compile_for_sqlite(sql), parameters).fetchall()
            )
    except StopIteration as end:
        return cast(T, end.value)
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
