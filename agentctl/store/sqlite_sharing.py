"""Writing to a SQLite file that other processes write to as well: turns, and a short log."""

from __future__ import annotations

import contextlib
import time

import apsw

__all__ = ["Patience", "keep_log_short"]

LOOKS = ((0.02, 0.002), (0.05, 0.001), (1.0, 0.0003), (float("inf"), 0.005))
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


class Patience:
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
        time.sleep(next(pause for until, pause in LOOKS if waited < until))
        return True


def keep_log_short(connection: apsw.Connection, patience: Patience) -> None:
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
                _restart(connection, name, patience)
        return apsw.SQLITE_OK

    connection.set_wal_hook(committed)


def _restart(connection: apsw.Connection, name: str, patience: Patience) -> None:
    usual, patience.seconds = patience.seconds, RESTART_SECONDS
    try:
        connection.wal_checkpoint(name, apsw.SQLITE_CHECKPOINT_RESTART)
    finally:
        patience.seconds = usual
