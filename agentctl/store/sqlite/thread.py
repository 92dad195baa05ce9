"""Long work on a SQLite file, such as its rewrite, on a thread with a separate connection."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import apsw

from agentctl.store.sqlite.connection import (
    add_path,
    connect_reader,
    connect_writer,
    get_file_size,
    to_public_error,
)
from agentctl.store.threads import complete_in_thread

T = TypeVar("T")

ShouldStop = Callable[[], bool]
"""Returns True if the work must stop."""

STEPS = 10_000
"""SQLite instructions between two checks of `ShouldStop`: far less than a millisecond."""

VACUUM_BYTES = 100_000_000
"""The largest file that is rewritten without a request: writers wait for about a second."""

LOG_SECONDS = 5.0
"""Maximum time until no reader needs the write-ahead log."""


async def run_on_thread(
    path: Path, work: Callable[[apsw.Connection, ShouldStop], T], *, writes: bool = False
) -> T:
    """Run work on a thread with a separate connection.

    If the task is cancelled, the running statement ends with `apsw.InterruptError`.

    Args:
        work: called with the connection and a function that the work calls between statements to
            find out whether it must stop.

    Raises:
        Unavailable: the database failed.
    """
    stop = threading.Event()

    def run() -> T:
        connection = connect_writer(path) if writes else connect_reader(path)
        connection.set_progress_handler(stop.is_set, STEPS)
        try:
            return work(connection, stop.is_set)
        finally:
            connection.close(True)

    try:
        return await complete_in_thread(run, on_cancel=stop.set)
    except apsw.CantOpenError as error:
        raise add_path(to_public_error(error, str(path)), path) from None
    except apsw.Error as error:
        raise to_public_error(error, str(path)) from None


class Rewrite(NamedTuple):
    """The end of a rewrite."""

    bytes: int
    """The size of the file."""

    vacuumed: bool
    """True if the file was rewritten."""

    log_emptied: bool
    """True if the write-ahead log was emptied."""

    seconds: float
    """Its duration."""


async def rewrite_file(path: Path, maximum: int | None) -> Rewrite:
    """Rewrite a file and empty its write-ahead log. Readers continue, writers wait.

    The unused parts of pages may have deleted text: `secure_delete` overwrites deleted rows, but
    not the copies that earlier updates and splits of pages have left. VACUUM writes every page
    again, and an emptied write-ahead log has none of the old pages (decision 120).

    Args:
        maximum: a file with more bytes is not rewritten, only its log is emptied; None rewrites any
            file.

    Raises:
        Unavailable: the disk is full, or another process holds the lock.
    """

    def work(connection: apsw.Connection, should_stop: ShouldStop) -> Rewrite:
        began = time.monotonic()
        vacuumed = maximum is None or get_file_size(path) <= maximum
        if vacuumed:
            connection.execute("VACUUM")

        log_emptied = False
        end = time.monotonic() + LOG_SECONDS
        while not log_emptied and time.monotonic() < end and not should_stop():
            with contextlib.suppress(apsw.BusyError):
                connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
                log_emptied = True

        return Rewrite(get_file_size(path), vacuumed, log_emptied, time.monotonic() - began)

    return await run_on_thread(path, work, writes=True)
