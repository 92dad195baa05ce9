"""The SQLite driver: reads on the loop or on reader threads, writes on one thread.

Every connection is opened when it is first needed: a command that reads opens one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import CodeType
from typing import TypeVar, cast

import apsw

from agentctl import errors
from agentctl.records.times import now
from agentctl.store.database import Large, Load, Longer, Work, probe
from agentctl.store.sqlite.connection import (
    connect_reader,
    run_unit,
    run_unit_on_snapshot,
    to_public_error,
)
from agentctl.store.sqlite.file import get_lock_folder
from agentctl.store.sqlite.writer import Writer

__all__ = ["SqliteDatabase"]

T = TypeVar("T")

READERS = 4
"""Threads for large reads."""

READ_SECONDS = 30.0
"""How long a large read may take: while it lasts, the log cannot begin anew."""

STEPS = 100_000
"""Instructions of SQLite between two looks at that: some milliseconds."""

LOOP_STEPS, LOOP_LOOKS = 5_000, 10
"""Instructions between two looks at a read on the event loop that is perhaps large, and after how
many it goes on elsewhere: half a millisecond. To go there at once takes as long as a short page."""


class SqliteDatabase:
    """A database in a SQLite file (`database.Database`).

    Args:
        id: its id in the configuration.
        path: the file, which exists and has the schema; `open.open_database` sees to both.
    """

    def __init__(self, id: str, path: Path) -> None:
        self.id = id
        self.path = path
        self._closed = False
        self._apart = 0  # large reads that were asked for and have not ended
        self._lock = threading.Lock()
        self._reader: apsw.Connection | None = None
        self._longer: set[CodeType] = set()
        self._looks = -1  # that a read on the loop has left before it has to go; -1: it may stay
        self._writer: Writer | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._idle: deque[apsw.Connection] = deque()

    @property
    def lock_folder(self) -> Path:
        """The folder for lock files, beside the file itself, whatever links lead to it."""
        return get_lock_folder(self.path)

    async def check(self) -> None:
        """See that it answers; `open.open_database` has looked at its schema."""
        await self.read(probe())

    async def clock(self) -> int:
        """What the time is: all who use the file are on one machine."""
        return now()

    async def read(self, work: Work[T], *, large: Large = False) -> T:
        """Run a unit that only reads, on one snapshot.

        Args:
            work: the unit. A statement of it that writes fails.
            large: run it on a reader thread, so that the event loop is not held up. Without it the
                unit runs on the loop: for point reads and what is known to be small. `perhaps`:
                it begins on the loop, and once more on a thread if it is not over soon.
        """
        if large == "perhaps":
            with contextlib.suppress(apsw.InterruptError):
                return self._read_briefly(work)
        if large:
            return await asyncio.wrap_future(self._submit_apart(work))
        return self.read_blocking(work)

    def read_blocking(self, work: Work[T]) -> T:
        """Like `read` on the loop, for callers without one."""
        try:
            with self._lock:
                return self._run_on_loop(work)
        except apsw.Error as error:
            raise to_public_error(error, self.id) from None

    def _read_briefly(self, work: Work[T]) -> T:
        """Raises InterruptError once the unit has taken its time on the loop."""
        try:
            with self._lock:
                self._looks = LOOP_LOOKS
                try:
                    return self._run_on_loop(work)
                finally:
                    self._looks = -1
        except apsw.InterruptError:
            raise
        except apsw.Error as error:
            raise to_public_error(error, self.id) from None

    def _has_to_leave(self) -> bool:
        """Asked again and again while SQLite works for the loop. True is said once: what ends the
        transaction is not to be interrupted."""
        if self._looks < 0:
            return False
        self._looks -= 1
        return self._looks < 0

    def _run_on_loop(self, work: Work[T]) -> T:
        """A single statement is a snapshot already. That a unit has more shows when it asks for the
        second one: then it begins again inside a transaction, and so do its like from then on."""
        reader = self._loop_reader()
        if work.code not in self._longer:
            try:
                return run_unit(reader, work, most=1)
            except Longer:
                self._longer.add(work.code)
        return run_unit_on_snapshot(reader, work)

    async def write(self, work: Work[T]) -> T:
        """Run a unit in one transaction; returns once it is on the disk.

        A unit that was handed over runs even when the waiting task is cancelled.
        """
        with self._lock:
            future: asyncio.Future[T] = self._open_writer().submit(work)
        return await future

    def write_blocking(self, work: Work[T]) -> T:
        """Like `write`, for any thread, with or without an event loop, which it holds up."""
        with self._lock:
            future: Future[T] = self._open_writer().submit_blocking(work)
        return future.result()

    def changes(self) -> int:
        """A number that changes when the file was written to, by this process or another.

        It tells of every commit since the last call and costs some microseconds.
        """
        try:
            with self._lock:
                rows = self._loop_reader().execute("PRAGMA data_version").fetchall()
        except apsw.Error as error:
            raise to_public_error(error, self.id) from None
        return cast(int, rows[0][0])

    def load(self) -> Load:
        """How busy it is now. A small read, which is over at once, is never seen here."""
        writer = self._writer
        apart, writing = self._apart, writer is not None and writer.is_busy
        queued = 0 if writer is None else writer.waiting
        return Load(
            kind="sqlite",
            waiting=queued + max(apart - READERS, 0),
            in_use=min(apart, READERS) + int(writing),
            size=READERS + 2,
        )

    async def close(self) -> None:
        """Finish the writes that were handed over, then close every connection."""
        waits = self._end()
        if waits:
            await asyncio.get_running_loop().run_in_executor(None, _call_each, waits)

    def close_blocking(self) -> None:
        """Like `close`, for callers without an event loop."""
        _call_each(self._end())

    def _end(self) -> list[Callable[[], None]]:
        """Refuse new work; returns what is to be waited for, off the event loop."""
        with self._lock:
            self._closed = True
            waits: list[Callable[[], None]] = []
            if self._pool is not None:
                waits.append(self._pool.shutdown)
                waits.append(self._close_idle)
            if self._reader is not None:
                self._reader.close(True)
                self._reader = None
            if self._writer is not None:
                # Last, so that the checkpoint of the last connection is on the writer thread.
                waits.append(self._writer.stop)
                waits.append(self._writer.join)
            return waits

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise errors.Unavailable("The database is closed", cause=f"database {self.id!r}")

    def _loop_reader(self) -> apsw.Connection:
        if self._reader is None:
            self._refuse_when_closed()
            self._reader = connect_reader(self.path, on_loop=True)
            self._reader.set_progress_handler(self._has_to_leave, LOOP_STEPS)
        return self._reader

    def _open_writer(self) -> Writer:
        self._refuse_when_closed()
        if self._writer is None:
            self._writer = Writer(self.id, self.path)
        return self._writer

    def _submit_apart(self, work: Work[T]) -> Future[T]:
        with self._lock:
            self._refuse_when_closed()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(READERS, f"store-{self.id}-reader")
            future = self._pool.submit(self._read_apart, work)
            self._apart += 1
        future.add_done_callback(self._read_ended)
        return future

    def _read_ended(self, _: Future[T]) -> None:
        with self._lock:
            self._apart -= 1

    def _read_apart(self, work: Work[T]) -> T:
        try:
            with self._borrowed() as connection:
                end = time.monotonic() + READ_SECONDS
                connection.set_progress_handler(lambda: time.monotonic() > end, STEPS)
                return run_unit_on_snapshot(connection, work)
        except apsw.Error as error:
            raise to_public_error(error, self.id) from None

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[apsw.Connection]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = connect_reader(self.path)
        try:
            yield connection
        finally:
            self._idle.append(connection)

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close(True)


def _call_each(steps: list[Callable[[], None]]) -> None:
    for step in steps:
        step()
