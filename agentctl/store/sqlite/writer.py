"""The writer thread of a SQLite database, with group commit.

A commit waits for the disk, and SQLite has one writer at a time. So the thread takes all waiting
units, runs them in one transaction, commits once, and returns all results. If a unit fails, the
thread undoes the transaction and runs all units again, each in a savepoint, so that only the
changes of the failed one are lost. Savepoints from the beginning would copy every page before its
first change, for each unit, in most cases to a temporary file (docs/decisions/0112).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import apsw

from agentctl import errors
from agentctl.store.database import Work
from agentctl.store.sqlite.connection import (
    WAIT_MILLISECONDS,
    BusyHandler,
    connect_writer,
    log,
    run_unit,
    to_public_error,
)
from agentctl.store.sqlite.file import OpenFile

GROUP = 512
"""Maximum number of units in one transaction: it limits the wait of other processes."""


WAIT_SECONDS = WAIT_MILLISECONDS / 1_000
"""Maximum wait of a unit for the lock of another process, from its submission."""

PAUSE_SECONDS = 0.005
"""Time between two attempts if SQLite reports a lock without waiting for it."""


class _QueuedUnit:
    """A unit of work with the future of its caller, and its result or error.

    `loop` is the event loop of the caller; None if the caller is a blocked thread. `deadline` is
    the time on the monotonic clock until which the unit waits for the lock of another process.
    """

    __slots__ = ("deadline", "error", "future", "loop", "result", "work")

    def __init__(
        self,
        work: Work[Any],
        loop: asyncio.AbstractEventLoop | None,
        future: asyncio.Future[Any] | concurrent.futures.Future[Any],
    ) -> None:
        self.work = work
        self.loop = loop
        self.future = future
        self.deadline = time.monotonic() + WAIT_SECONDS
        self.result: Any = None
        self.error: BaseException | None = None

    def answer(self) -> None:
        """Resolve the future of the caller, unless its task was cancelled."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Writer:
    """The writer thread of one file. The constructor starts it, `stop` ends it.

    Attributes:
        is_busy: True while the thread runs units.
        failed_at: the time on the monotonic clock of the last transaction that failed because the
            file cannot be written; None without one.
    """

    def __init__(self, name: str, file: OpenFile) -> None:
        self._name = name
        self._file = file
        self._queue: SimpleQueue[_QueuedUnit | None] = SimpleQueue()
        self.is_busy = False
        self._busy_handler = BusyHandler(WAIT_SECONDS)
        self._late: list[_QueuedUnit] = []  # of a group that waited in vain, with time left
        self.failed_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"store-{name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of units that wait for the thread."""
        return self._queue.qsize()

    def submit(self, work: Work[Any]) -> asyncio.Future[Any]:
        """Accept a unit. It runs even if the task that waits for the future is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.put(_QueuedUnit(work, loop, future))
        return future

    def submit_blocking(self, work: Work[Any]) -> concurrent.futures.Future[Any]:
        """Accept a unit whose caller is a thread that blocks on the future."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._queue.put(_QueuedUnit(work, None, future))
        return future

    def stop(self) -> None:
        """End the thread after the accepted units."""
        self._queue.put(None)

    def join(self) -> None:
        """Wait until the thread has ended. Its connection is closed then."""
        self._thread.join()

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        stopping = False
        open_connection = partial(connect_writer, busy_handler=self._busy_handler)
        while not stopping or self._late:
            group, stop = self._take()
            stopping = stopping or stop
            self.is_busy = True
            try:
                connection = connection or self._file.connect(open_connection)
                self._commit(connection, group)
            except apsw.BusyError as error:
                self._undo(connection)
                group = self._keep_those_in_time(group)
                self._fail(group, error)
            except BaseException as error:
                self._undo(connection)
                self._fail(group, error)
            self.is_busy = False
            # After the commit: no caller has a result that a crash could undo.
            _resolve(group)
        if connection is not None:
            connection.close(True)

    def _keep_those_in_time(self, group: list[_QueuedUnit]) -> list[_QueuedUnit]:
        """Put units whose deadline has not passed into the next group; return the others.

        A unit that arrives while a group waits would otherwise wait twice.
        """
        present = time.monotonic()
        self._late = [unit for unit in group if unit.error is None and unit.deadline > present]
        if len(self._late) == len(group):
            time.sleep(PAUSE_SECONDS)  # SQLite has not waited, as during the recovery of the log.
        return [unit for unit in group if unit not in self._late]

    def _take(self) -> tuple[list[_QueuedUnit], bool]:
        group, self._late = self._late, []
        try:
            unit = self._queue.get_nowait() if group else self._queue.get()
            while unit is not None:
                group.append(unit)
                if len(group) == GROUP:
                    return group, False
                unit = self._queue.get_nowait()
        except Empty:
            return group, False
        return group, True

    def _commit(self, connection: apsw.Connection, group: list[_QueuedUnit]) -> None:
        if not group:
            return
        self._file.check()
        self._begin(connection, group)
        try:
            for unit in group:
                unit.result = run_unit(connection, unit.work)
        except BaseException as error:
            if not connection.in_transaction:
                # After a full disk or an I/O error SQLite has undone the transaction.
                raise
            connection.execute("ROLLBACK")
            if len(group) == 1:
                group[0].error = self._to_public(error)
                return
            self._begin(connection, group)
            for unit in group:
                self._apply(connection, unit)
        connection.execute("COMMIT")

    def _begin(self, connection: apsw.Connection, group: list[_QueuedUnit]) -> None:
        until = min(unit.deadline for unit in group)
        self._busy_handler.seconds = max(0.0, until - time.monotonic())
        # The lock first: a transaction that began with a read cannot get it after a commit of
        # another process, and SQLite would not wait for it.
        connection.execute("BEGIN IMMEDIATE")
        self._busy_handler.seconds = WAIT_SECONDS

    def _apply(self, connection: apsw.Connection, unit: _QueuedUnit) -> None:
        connection.execute("SAVEPOINT unit")
        try:
            unit.result = run_unit(connection, unit.work)
        except BaseException as error:
            unit.error = self._to_public(error)
            if not connection.in_transaction:
                # The changes of the earlier units are lost as well.
                raise
            connection.execute("ROLLBACK TO unit")
        connection.execute("RELEASE unit")

    def _fail(self, group: list[_QueuedUnit], error: BaseException) -> None:
        public = self._to_public(error)
        if not isinstance(public, errors.AgentctlError):
            log.error("database %s: the writer failed", self._name, exc_info=error)
            public = errors.InternalError()
        if group and isinstance(public, errors.Unavailable):
            self.failed_at = time.monotonic()
        for unit in group:
            unit.error = unit.error or public

    def _to_public(self, error: BaseException) -> BaseException:
        if not isinstance(error, apsw.Error):
            return error
        public = to_public_error(error, self._name)
        if isinstance(public, errors.DatabaseMoved):
            self.failed_at = time.monotonic()
        return public

    def _undo(self, connection: apsw.Connection | None) -> None:
        if connection is None or not connection.in_transaction:
            return
        try:
            connection.execute("ROLLBACK")
        except apsw.Error as error:
            to_public_error(error, self._name)


def _resolve(group: list[_QueuedUnit]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_QueuedUnit]] = {}
    for unit in group:
        if unit.loop is None:
            unit.answer()
        else:
            by_loop.setdefault(unit.loop, []).append(unit)
    for loop, units in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_each, units)
        except RuntimeError:
            log.warning("%d writes ended after their event loop was closed", len(units))


def _resolve_each(units: list[_QueuedUnit]) -> None:
    for unit in units:
        unit.answer()
