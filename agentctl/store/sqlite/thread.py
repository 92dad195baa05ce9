"""Long work on a SQLite file: on a thread and a connection of its own, ended with its task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from agentctl.store.sqlite.connection import connect_reader, connect_writer, to_public_error

__all__ = ["ShouldStop", "run_on_thread"]

T = TypeVar("T")

ShouldStop = Callable[[], bool]
"""Whether the work is no longer wanted."""

STEPS = 10_000
"""Instructions of SQLite between two looks at that: well below a millisecond."""


async def run_on_thread(
    path: Path, work: Callable[[apsw.Connection, ShouldStop], T], *, writes: bool = False
) -> T:
    """Run work with a connection of its own, on a thread.

    When the task is cancelled, the statement that runs ends with `apsw.InterruptError`.

    Args:
        path: the file, which exists.
        work: is given the connection, and what tells it, between statements, to end.
        writes: whether the connection may write.

    Raises:
        Unavailable: the database failed.
        Whatever the work raises.
    """
    stop = threading.Event()

    def connected() -> T:
        connection = connect_writer(path) if writes else connect_reader(path)
        connection.set_progress_handler(stop.is_set, STEPS)
        try:
            return work(connection, stop.is_set)
        finally:
            connection.close(True)

    doing = asyncio.ensure_future(asyncio.to_thread(connected))
    doing.add_done_callback(_retrieve_exception)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([doing])
        raise
    except apsw.Error as error:
        raise to_public_error(error, str(path)) from None


def _retrieve_exception(done: asyncio.Future[T]) -> None:
    """Who is told twice not to wait for it does not hear how it ended."""
    if not done.cancelled():
        done.exception()
