"""Long work on a SQLite file, on a thread with a separate connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from agentctl.store.sqlite.connection import connect_reader, connect_writer, to_public_error
from agentctl.store.sqlite.file import add_path
from agentctl.store.threads import call_in_thread
from agentctl.work.event_loop import retrieve_exception

T = TypeVar("T")

ShouldStop = Callable[[], bool]
"""Returns True if the work must stop."""

STEPS = 10_000
"""SQLite instructions between two checks of `ShouldStop`: far less than a millisecond."""


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

    running = asyncio.ensure_future(call_in_thread(run))
    running.add_done_callback(retrieve_exception)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([running])
        raise
    except apsw.CantOpenError as error:
        raise add_path(to_public_error(error, str(path)), path) from None
    except apsw.Error as error:
        raise to_public_error(error, str(path)) from None
