"""Writing to a SQLite file that other processes write to as well: turns, and a short log.

One connection to a SQLite file: how it is set up, how a unit runs on it, what its errors mean.

A connection is used by one thread at a time; apsw refuses anything else.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import TypeVar, cast

import apsw

from agentctl import errors
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.store.database import Longer, Row, Work, compile_for_sqlite

__all__ = [
    "WAL_BYTES",
    "BusyHandler",
    "connect_reader",
    "connect_writer",
    "keep_wal_short",
    "log",
    "run_unit",
    "run_unit_on_snapshot",
    "to_public_error",
]

PAUSES = ((0.02, 0.002), (0.05, 0.001), (1.0, 0.0003), (float("inf"), 0.005))
"""Seconds waited, and those between two looks at the lock until then. Who has waited longer looks
more often, and so gets it sooner; SQLite's own looks get rarer, so that under load the one that has
waited longest waits on. What is held for more than a second is in no hurry."""

CHECKPOINT_PAGES = 1_000
"""What is in the log when it is written to the file: 4 MB."""

RESTART_PAGES = 4_000
"""What is in it when others are asked to wait until it begins anew: while several write and read,
it would else go on growing, because it is never all in the file when the next one writes."""

RESTART_SECONDS = 0.05
"""How long they may have to: a long read keeps the log anyhow."""


class BusyHandler:
    """A busy handler: waits for a lock up to a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = 0.0

    def __call__(self, looks: int) -> bool:
        present = time.monotonic()
        if looks == 0:
            self._began = present
        waited = present - self._began
        if waited >= self.seconds:
            return False
        time.sleep(next(pause for until, pause in PAUSES if waited < until))
        return True


def keep_wal_short(connection: apsw.Connection, patience: BusyHandler) -> None:
    """Write the log to the file now and then, after a commit, and let it begin anew.

    Args:
        connection: of the writer.
        patience: its busy handler.
    """
    tried = 0

    def committed(connection: apsw.Connection, name: str, pages: int) -> int:
        nonlocal tried
        if pages < CHECKPOINT_PAGES:
            tried = 0
            return apsw.SQLITE_OK
        # What keeps this from being done is over at one of the next commits, or told by a write.
        with contextlib.suppress(apsw.Error):
            if pages < max(RESTART_PAGES, tried + CHECKPOINT_PAGES):
                connection.wal_checkpoint(name, apsw.SQLITE_CHECKPOINT_PASSIVE)
            else:
                tried = pages
                _restart_wal(connection, name, patience)
        return apsw.SQLITE_OK

    connection.set_wal_hook(committed)


def _restart_wal(connection: apsw.Connection, name: str, patience: BusyHandler) -> None:
    usual, patience.seconds = patience.seconds, RESTART_SECONDS
    try:
        connection.wal_checkpoint(name, apsw.SQLITE_CHECKPOINT_RESTART)
    finally:
        patience.seconds = usual


T = TypeVar("T")

log = logging.getLogger("agentctl.store")
_complaints = RateLimitedLog(log, level=logging.ERROR)

WAIT_MILLISECONDS = 5_000
"""How long a writer, or a reader beside the event loop, waits for another process's lock."""

LOOP_WAIT_MILLISECONDS = 500
"""How long a read on the event loop waits. In WAL mode only a recovery makes a reader wait."""

STATEMENTS = 256
"""Prepared statements that a connection keeps: more than the repositories use at a time."""

WAL_BYTES = 64 * 1024 * 1024
"""What is left of the write-ahead log after a checkpoint, however far a long read let it grow."""

_FAILURES: dict[type[Exception], tuple[str, str]] = {
    apsw.BusyError: (
        "The database is busy",
        "another process holds its lock; try again",
    ),
    apsw.InterruptError: ("The database takes too long", "ask for less at once"),
    apsw.FullError: ("The database's disk is full", "free some space"),
    apsw.IOError: (
        "The database cannot be read or written",
        "check the disk and the permissions of the file and its folder",
    ),
    apsw.CorruptError: (
        "The database is damaged",
        "look at it with `agentctl db check`, and restore it from a backup",
    ),
    apsw.NotADBError: (
        "The file is not a database",
        "name another file in [[databases]] url",
    ),
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
"""Errors that no user can do anything about: a statement of ours is wrong."""


def to_public_error(error: apsw.Error, name: str) -> errors.AgentctlError:
    """What a caller is told of an error of apsw: Unavailable, or InternalFailure for a fault of
    ours. Its own text goes to the log.

    Args:
        error: what was raised.
        name: id of the database.
    """
    if isinstance(error, _FAULTS):
        log.error("database %s: %s: %s", name, type(error).__name__, error)
        return errors.InternalError()
    # What keeps a database away keeps it away from everybody, again and again.
    _complaints.make("database %s: %s: %s", name, type(error).__name__, error)
    for kind, (detail, hint) in _FAILURES.items():
        if isinstance(error, kind):
            return errors.Unavailable(detail, cause=f"database {name!r}", hint=hint)
    return errors.Unavailable("The database failed", cause=f"database {name!r}")


def connect_reader(path: Path, *, on_loop: bool = False) -> apsw.Connection:
    """A connection that refuses to write. The file must exist. Raises apsw's errors.

    It maps nothing of the file: what cannot be read is to be an error, and not the end of the
    process (docs/decisions/0029).
    """
    connection = _connect(path, LOOP_WAIT_MILLISECONDS if on_loop else WAIT_MILLISECONDS)
    connection.pragma("query_only", True)
    return connection


def connect_writer(path: Path) -> apsw.Connection:
    """A connection for writing, durable at each commit (design.md "Store"). Raises apsw's errors.

    The journal mode is a property of the file, set when it was made; `open` sees to that.
    """
    connection = _connect(path, WAIT_MILLISECONDS)
    connection.pragma("synchronous", "FULL")
    connection.pragma("foreign_keys", True)
    connection.pragma("journal_size_limit", WAL_BYTES)
    patience = BusyHandler(WAIT_MILLISECONDS / 1_000)
    connection.set_busy_handler(patience)
    keep_wal_short(connection, patience)
    return connection


def _connect(path: Path, wait: int) -> apsw.Connection:
    connection = apsw.Connection(
        str(path), flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=STATEMENTS
    )
    connection.set_busy_timeout(wait)
    return connection


def run_unit(connection: apsw.Connection, work: Work[T], *, most: int | None = None) -> T:
    """Run a unit in the transaction that is open, if one is. The caller undoes what a failure
    leaves behind.

    Args:
        most: how many statements it may have.

    Raises:
        ValidationFailed: a value is text that no database takes (contract.md 7).
        Longer: it has a statement more than `most`; that one was not run.
        Whatever a statement or the unit itself raises.
    """
    steps = iter(work)
    send = steps.send
    rows: list[Row] | None = None
    try:
        while True:
            sql, parameters = send(cast("list[Row]", rows))
            if most is not None:
                if not most:
                    raise Longer
                most -= 1
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
    """Run a unit that reads, in a transaction of its own: all its statements see one state."""
    connection.execute("BEGIN")
    try:
        return run_unit(connection, work)
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
