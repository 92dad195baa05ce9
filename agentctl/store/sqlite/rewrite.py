"""Rewrite of a SQLite file without the unused parts of its pages, which may have deleted text.

`secure_delete` overwrites deleted rows, but not the copies that earlier updates and splits of
pages have left. VACUUM writes every page again, and an emptied write-ahead log has none of the old
ones (docs/decisions/0120).
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import NamedTuple

import apsw

from agentctl.store.sqlite.file import get_file_size
from agentctl.store.sqlite.thread import ShouldStop, run_on_thread

VACUUM_BYTES = 100_000_000
"""The largest file that is rewritten without a request: writers wait for about a second."""

LOG_SECONDS = 5.0
"""Maximum time until no reader needs the write-ahead log."""


class Rewrite(NamedTuple):
    """The end of a rewrite: the size of the file, the steps that were done, and its duration."""

    bytes: int
    vacuumed: bool
    log_emptied: bool
    seconds: float


async def rewrite_file(path: Path, maximum: int | None) -> Rewrite:
    """Rewrite a file and empty its write-ahead log. Readers continue, writers wait.

    Args:
        maximum: only empty the log of a file with more bytes than that; None for any file.

    Raises:
        Unavailable: the disk is full, or another process holds the lock.
    """

    def work(connection: apsw.Connection, should_stop: ShouldStop) -> Rewrite:
        began = time.monotonic()
        vacuumed = maximum is None or get_file_size(path) <= maximum
        if vacuumed:
            connection.execute("VACUUM")
        log_emptied, end = False, time.monotonic() + LOG_SECONDS
        while not log_emptied and time.monotonic() < end and not should_stop():
            with contextlib.suppress(apsw.BusyError):
                connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)
                log_emptied = True
        return Rewrite(get_file_size(path), vacuumed, log_emptied, time.monotonic() - began)

    return await run_on_thread(path, work, writes=True)
