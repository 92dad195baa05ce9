"""The SQLite driver: reads on the event loop or on reader threads, writes on a writer thread.

Every connection is opened when it is first used: a command that only reads opens one.

A commit waits for the disk, and SQLite has one writer at a time. So the writer takes all waiting
units, runs them in one transaction, commits once, and returns all results. If a unit fails, the
writer undoes the transaction and runs all units again, each in a savepoint, so that only the
changes of the failed one are lost. Savepoints from the beginning would copy every page before its
first change, for each unit, in most cases to a temporary file (decision 112).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import apsw

from agentctl import errors
from agentctl.records.times import now
from agentctl.store.database import FAILURE_SECONDS, Load, ReadSize, SecondStatement, Work, probe
from agentctl.store.outbox import Outbox
from agentctl.store.schema import StoredVersion
from agentctl.store.sqlite.connection import (
    WAIT_MILLISECONDS,
    BusyHandler,
    OpenFile,
    connect_reader,
    connect_writer,
    get_lock_folder,
    log,
    run_unit,
    run_unit_on_snapshot,
    to_public_error,
)
from agentctl.store.threads import call_in_thread
from agentctl.store.totals import ListTotals

T = TypeVar("T")

GROUP = 512
"""Maximum number of units in one transaction: it limits the wait of other processes."""

WAIT_SECONDS = WAIT_MILLISECONDS / 1_000
"""Maximum wait of a unit for the lock of another process, from its submission."""

PAUSE_SECONDS = 0.005
"""Time between two attempts if SQLite reports a lock without waiting for it."""


class _QueuedUnit:
    """A unit of work with the future of its caller, and its result or error."""

    __slots__ = ("deadline", "error", "future", "result", "work")

    def __init__(self, work: Work[Any], future: asyncio.Future[Any] | Future[Any]) -> None:
        self.work = work
        self.future = future

        self.deadline = time.monotonic() + WAIT_SECONDS
        """The monotonic time until which it waits for the lock of another process."""

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
    """The writer thread of one file. The constructor starts it, `stop` ends it."""

    def __init__(self, name: str, file: OpenFile) -> None:
        self._name = name
        self._file = file
        # None ends the thread.
        self._queue: SimpleQueue[_QueuedUnit | None] = SimpleQueue()

        self.is_busy = False
        """True while the thread runs units."""

        self._busy_handler = BusyHandler(WAIT_SECONDS)
        # The units of a group that has waited in vain for the lock, if they have time left.
        self._late: list[_QueuedUnit] = []

        self.failed_at: float | None = None
        """The time of the last transaction that failed because the file cannot be written.

        On the monotonic clock; None without such a transaction.
        """

        self._thread = threading.Thread(target=self._run, name=f"store-{name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of units that wait for the thread."""
        return self._queue.qsize()

    def submit(self, work: Work[Any], future: asyncio.Future[Any] | Future[Any]) -> None:
        """Accept a unit for a task, or for a thread that blocks on the future.

        It runs even if the task is cancelled.
        """
        self._queue.put(_QueuedUnit(work, future))

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
            except BaseException as error:
                self._undo(connection)
                if isinstance(error, apsw.BusyError):
                    group = self._keep_units_in_time(group)
                self._fail(group, error)
            self.is_busy = False

            # After the commit: no caller has a result that a crash could undo.
            _answer_callers(group)

        if connection is not None:
            connection.close(True)

    def _keep_units_in_time(self, group: list[_QueuedUnit]) -> list[_QueuedUnit]:
        """Put units whose deadline has not passed into the next group; return the other units.

        A unit that arrives while a group waits would otherwise wait twice.
        """
        present = time.monotonic()
        self._late = [unit for unit in group if unit.error is None and unit.deadline > present]
        if len(self._late) == len(group):
            # SQLite has not waited, as during the recovery of the log.
            time.sleep(PAUSE_SECONDS)
        return [unit for unit in group if unit not in self._late]

    def _take(self) -> tuple[list[_QueuedUnit], bool]:
        """Wait for units; return the next group, and True if the thread has to end after it."""
        group = self._late
        self._late = []
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
        """Run the units of a group, and commit them together."""
        if not group:
            return

        self._file.check(connection)
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

            # Again, each in a savepoint: only the changes of the failed unit are lost.
            self._begin(connection, group)
            for unit in group:
                self._apply(connection, unit)
        connection.execute("COMMIT")

    def _begin(self, connection: apsw.Connection, group: list[_QueuedUnit]) -> None:
        # Negative if a unit has waited for the thread for too long: SQLite does not wait then.
        earliest = min(unit.deadline for unit in group)
        self._busy_handler.seconds = earliest - time.monotonic()

        # The lock first: a transaction that began with a read cannot get it after a commit of
        # another process, and SQLite would not wait for it.
        connection.execute("BEGIN IMMEDIATE")

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
        public_error = self._to_public(error)
        if not isinstance(public_error, errors.AgentctlError):
            log.error("database %s: the writer failed", self._name, exc_info=error)
            public_error = errors.InternalError()

        if group and isinstance(public_error, errors.Unavailable):
            self.failed_at = time.monotonic()
        for unit in group:
            if unit.error is None:
                unit.error = public_error

    def _to_public(self, error: BaseException) -> BaseException:
        if not isinstance(error, apsw.Error):
            return error
        return to_public_error(error, self._name)

    def _undo(self, connection: apsw.Connection | None) -> None:
        if connection is not None and connection.in_transaction:
            # If this fails, the next transaction cannot begin, and reports it.
            with contextlib.suppress(apsw.Error):
                connection.execute("ROLLBACK")


def _answer_callers(group: list[_QueuedUnit]) -> None:
    """Resolve the futures of a group, those of tasks with one call for each event loop."""
    units_by_loop: dict[asyncio.AbstractEventLoop, list[_QueuedUnit]] = {}
    for unit in group:
        if isinstance(unit.future, asyncio.Future):
            units_by_loop.setdefault(unit.future.get_loop(), []).append(unit)
        else:
            unit.answer()

    for loop, units in units_by_loop.items():
        try:
            loop.call_soon_threadsafe(_answer_units, units)
        except RuntimeError:
            log.warning("%d writes ended after their event loop was closed", len(units))


def _answer_units(units: list[_QueuedUnit]) -> None:
    for unit in units:
        unit.answer()


READERS = 4
"""Threads for large reads."""

RUN_READERS = 2
"""Threads for the reads that live runs wait for."""

READ_SECONDS = 30.0
"""Maximum duration of a large read. While it lasts, the write-ahead log cannot restart."""

STEPS = 100_000
"""SQLite instructions between two checks of that limit: some milliseconds."""

LOOP_STEPS = 5_000
"""SQLite instructions between two checks of a read of unknown size on the event loop."""

LOOP_CHECKS = 30
"""Checks after which such a read moves to a thread, where it begins again: 0.7 milliseconds.

Up to 10,000 rows of an index are compared and counted in that time, for the exact total of a list.
To start every such read on a thread would cost as much as a short page.
"""


class SqliteDatabase:
    """A database in a SQLite file (`database.Database`).

    Args:
        id: its id in the configuration.
        path: the file. It exists and has the schema: `databases.open_sqlite` ensures that.
    """

    is_late = False
    """One writer takes all writes in their order: new work delays no started work."""

    def __init__(self, id: str, path: Path) -> None:
        self.id = id
        self.path = path
        self._file = OpenFile(path)
        self.totals = ListTotals()
        self.outbox = Outbox()
        self.version = StoredVersion(0, 0)
        self._closed = False
        self._lock = threading.Lock()
        self._writer: Writer | None = None

        # For reads on the event loop. `_checks_left` counts the checks before such a read must
        # move; -1 for no limit.
        self._reader: apsw.Connection | None = None
        self._checks_left = -1

        # For reads on threads; True for reads of runs. The reads that are accepted and not
        # finished, the threads, and the connections that no read uses.
        self._large_reads = Counter[bool]()
        self._pools: dict[bool, ThreadPoolExecutor] = {}
        self._idle: deque[apsw.Connection] = deque()

    @property
    def lock_folder(self) -> Path:
        """The folder for lock files, next to the real file if the path is a link."""
        return get_lock_folder(self.path)

    @property
    def write_failed(self) -> bool:
        failed_at = None if self._writer is None else self._writer.failed_at
        return failed_at is not None and time.monotonic() - failed_at < FAILURE_SECONDS

    async def check(self) -> None:
        """Check that the database answers. `databases.open_sqlite` has checked its schema."""
        await self.read(probe())

    async def clock(self) -> int:
        """Return the time of this machine: all processes that use the file run on it."""
        return now()

    async def read(self, work: Work[T], *, size: ReadSize = "small") -> T:
        """Run a unit that only reads, on one snapshot.

        Args:
            work: the unit. A statement of it that writes fails.
            size: `small` runs the unit on the event loop, `large` on a reader thread. `unknown`
                and `run` start it on the loop, and run it again on a thread if it takes long.
        """
        if size in ("unknown", "run"):
            with contextlib.suppress(apsw.InterruptError):
                return self.read_blocking(work, LOOP_CHECKS)
        if size != "small":
            return await asyncio.wrap_future(self._submit_large_read(work, size == "run"))
        return self.read_blocking(work)

    def read_blocking(self, work: Work[T], checks: int = -1) -> T:
        """Do the same as a small `read`, for callers without an event loop.

        Raises:
            apsw.InterruptError: it takes more than a number of checks; -1: no limit.
        """
        try:
            with self._lock:
                self._checks_left = checks
                try:
                    reader = self._loop_reader()
                    self._file.check_sometimes(reader)
                    if work.single:
                        # A single statement is a snapshot already.
                        with contextlib.suppress(SecondStatement):
                            return run_unit(reader, work, alone=True)
                    return run_unit_on_snapshot(reader, work)
                finally:
                    self._checks_left = -1
        except apsw.Error as error:
            if checks >= 0 and isinstance(error, apsw.InterruptError):
                raise
            raise to_public_error(error, self.id) from None

    def _must_interrupt(self) -> bool:
        """Return True if the read on the loop must stop. SQLite calls this every `LOOP_STEPS`.

        It returns True only once, so that the statement that ends the transaction can run.
        """
        if self._checks_left < 0:
            return False
        self._checks_left -= 1
        return self._checks_left < 0

    async def write(self, work: Work[T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._open_writer().submit(work, future)
        return await future

    def write_blocking(self, work: Work[T]) -> T:
        future = Future[T]()
        with self._lock:
            self._open_writer().submit(work, future)
        return future.result()

    def changes(self) -> int:
        """Return a number that changes after each commit to the file, by any process.

        The call costs some microseconds.
        """
        try:
            with self._lock:
                reader = self._loop_reader()
                self._file.check_sometimes(reader)
                rows = reader.execute("PRAGMA data_version").fetchall()
        except apsw.Error as error:
            raise to_public_error(error, self.id) from None
        return cast(int, rows[0][0])

    def watch(self, topic: str, notify: Callable[[], None] | None = None) -> Callable[[], int]:
        """Return `changes`: a file has no topics and no notifications."""
        return self.changes

    def announce(self, run_id: str) -> None:
        """Do nothing: `changes` shows each commit to all processes."""

    def request_announcements(self, owner: str, run_ids: Iterable[str]) -> None:
        """Do nothing; see `announce`."""

    def load(self) -> Load:
        """Return the load now. Small reads are never in it, because they end at once."""
        waiting = 0
        in_use = 0
        writer = self._writer
        if writer is not None:
            waiting += writer.waiting
            in_use += int(writer.is_busy)

        for is_for_run, readers in ((False, READERS), (True, RUN_READERS)):
            read_count = self._large_reads[is_for_run]
            waiting += max(read_count - readers, 0)
            in_use += min(read_count, readers)

        # The writer and the reader of the event loop have a connection as well.
        size = READERS + RUN_READERS + 2
        return Load(kind="sqlite", waiting=waiting, in_use=in_use, size=size)

    async def close(self) -> None:
        waits = self._shut_down()
        if waits:
            await call_in_thread(_call_each, waits)

    def close_blocking(self) -> None:
        """Do the same as `close`, for callers without an event loop."""
        _call_each(self._shut_down())

    def _shut_down(self) -> list[Callable[[], None]]:
        """Refuse new work. Return functions that block until the accepted work has ended."""
        with self._lock:
            self._closed = True
            waits: list[Callable[[], None]] = []
            if self._pools:
                waits = [*(pool.shutdown for pool in self._pools.values()), self._close_idle]
            if self._reader is not None:
                self._reader.close(True)
                self._reader = None
                # The writer may have accepted work and not be connected yet: then this was the last
                # connection, and SQLite has removed the log with it.
                self._file.forget_log()
            if self._writer is not None:
                # Last, so that the checkpoint of the last connection runs on the writer thread.
                waits += (self._writer.stop, self._writer.join)
            return waits

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise errors.DatabaseClosed("The database is closed", cause=f"database {self.id!r}")

    def _loop_reader(self) -> apsw.Connection:
        if self._reader is None:
            self._refuse_when_closed()
            self._reader = self._file.connect(partial(connect_reader, on_loop=True))
            self._reader.set_progress_handler(self._must_interrupt, LOOP_STEPS)
        return self._reader

    def _open_writer(self) -> Writer:
        self._refuse_when_closed()
        if self._writer is None:
            self._writer = Writer(self.id, self._file)
        return self._writer

    def _submit_large_read(self, work: Work[T], for_run: bool) -> Future[T]:
        with self._lock:
            self._refuse_when_closed()
            if for_run not in self._pools:
                readers = RUN_READERS if for_run else READERS
                self._pools[for_run] = ThreadPoolExecutor(readers, f"store-{self.id}-reader")
            future = self._pools[for_run].submit(self._read_on_thread, work)
            self._large_reads[for_run] += 1

        def count_finished(_: Future[T]) -> None:
            with self._lock:
                self._large_reads[for_run] -= 1

        future.add_done_callback(count_finished)
        return future

    def _read_on_thread(self, work: Work[T]) -> T:
        self._file.check_sometimes()
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._file.connect(connect_reader)
            try:
                end = time.monotonic() + READ_SECONDS
                connection.set_progress_handler(lambda: time.monotonic() > end, STEPS)
                return run_unit_on_snapshot(connection, work)
            finally:
                self._idle.append(connection)
        except apsw.Error as error:
            raise to_public_error(error, self.id) from None

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close(True)


def _call_each(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()
