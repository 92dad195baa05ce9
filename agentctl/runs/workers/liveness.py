"""The life of workers: identities of processes, lock files, and the monitor that finds dead ones.

A worker is dead in two cases (docs/contract.md "Workers"). Its process has exited:
its lock file is free, or its pid does not exist or belongs to another process. This is known at
once. Or its heartbeat has not changed for `DEAD_AFTER_SECONDS`.

The time without a heartbeat is measured on a clock of the monitor, which advances only when the
monitor looks and the database accepts writes of this process. So no worker is declared dead because
the monitor's own process was suspended, because the database was locked for a while, or because
clocks of machines differ. The heartbeats of this process show when those of others were written, so
a process that begins to look can judge at once. A command does not live long enough to observe
heartbeats. If lock files cannot cover all machines, it compares the heartbeat with the clock of the
database, which also set it.

A pid alone does not identify a process: it is reused, and it means something else on another
machine, after a reboot and in another container. The identity adds the start time, the boot id and
the pid namespace (proc(5), pid_namespaces(7)).

A worker locks its own file as long as it lives; the kernel frees the lock when the process ends.
Processes that share a SQLite file share one kernel and therefore the locks next to that file, even
if they see each other's pids differently or not at all (flock(2), decision 94).
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agentctl.records.logs import RateLimitedLog
from agentctl.store.databases import Databases
from agentctl.store.repositories import workers
from agentctl.store.repositories.workers import Heartbeat, WorkerRow

if TYPE_CHECKING:
    from agentctl.runs.desk.end import EndedRun


_EXITED_STATES = frozenset({"Z", "X", "x"})
"""States of a process that has ended and was not waited for by its parent (proc(5))."""

_LOCK_SUFFIX = ".lock"

STALE_LOCK_SECONDS = 60.0
"""Age at which a free lock file that belongs to no worker is removed."""


class ProcessIdentity(NamedTuple):
    """The unique identity of a process."""

    host: str

    boot_id: str
    """Kernel boot id and pid namespace.

    "" if the system does not provide them; the pid means nothing to other processes then.
    """

    pid: int

    process_start: int
    """Start time in clock ticks since boot; 0 if the system does not provide it."""


class _ProcessState(NamedTuple):
    """The state of a process as the system shows it."""

    has_ended: bool
    """True if it has ended, and its parent has not waited for it."""

    start: int
    """Start time in clock ticks since boot."""


def identify_this_process() -> ProcessIdentity:
    """Return the identity of the process that calls this."""
    pid = os.getpid()
    state = _read_process_state(pid)
    start = state.start if state is not None else 0
    return ProcessIdentity(socket.gethostname(), _boot_id(), pid, start)


def has_exited(process: ProcessIdentity) -> bool:
    """Return True if the process is known to have ended; False if that cannot be judged here."""
    if not process.boot_id or process.boot_id != _boot_id():
        return False
    if process.host != socket.gethostname():
        return False

    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        # The process exists and belongs to another user.
        pass

    state = _read_process_state(process.pid)
    if state is None:
        return False
    if state.has_ended:
        return True
    # Another start time: the pid belongs to a later process.
    return process.process_start != 0 and state.start != process.process_start


@cache
def _boot_id() -> str:
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _read_process_state(pid: int) -> _ProcessState | None:
    """Return the state and the start of a process; None if the system does not provide them.

    The second field, the name of the program, may contain any character, so fields are counted
    from its closing parenthesis.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return _ProcessState(fields[0].decode() in _EXITED_STATES, int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


class WorkerLock:
    """A locked file of this process, created by `acquire`. Child programs do not inherit it."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file

    @classmethod
    def acquire(cls, folder: Path, worker_id: str) -> WorkerLock:
        """Create the file of a new worker and lock it.

        Raises:
            OSError: the folder or the file cannot be created, or its system has no locks.
        """
        folder.mkdir(mode=0o700, exist_ok=True)
        path = _lock_path(folder, worker_id)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            path.unlink()
            raise
        return cls(path, file)

    def release(self) -> None:
        """Release the lock and keep the file, so that other processes see the worker as dead."""
        os.close(self._file)

    def remove(self) -> None:
        """Remove the file, then release the lock. No process sees the file unlocked."""
        with suppress(OSError):
            self._path.unlink()
        os.close(self._file)


def is_lock_free(folder: Path | None, worker_id: str) -> bool:
    """Return True if the worker's lock file exists and no process has locked it."""
    return folder is not None and _is_unlocked(_lock_path(folder, worker_id))


def remove_lock(folder: Path | None, worker_id: str) -> None:
    """Remove the lock file of a dead worker; a file that is gone is fine."""
    if folder is None:
        return
    with suppress(OSError):
        _lock_path(folder, worker_id).unlink()


def remove_stale_locks(folder: Path | None, workers: Collection[str]) -> None:
    """Remove old, unlocked files that belong to none of the workers."""
    if folder is None:
        return
    with suppress(OSError):
        for path in list(folder.glob(f"*{_LOCK_SUFFIX}")):
            age = abs(time.time() - path.stat().st_mtime)
            if path.stem not in workers and age > STALE_LOCK_SECONDS and _is_unlocked(path):
                path.unlink()


def _lock_path(folder: Path, worker_id: str) -> Path:
    return folder / f"{worker_id}{_LOCK_SUFFIX}"


def _is_unlocked(path: Path) -> bool:
    """Try a shared lock: several processes may test at once without seeing each other's lock."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


DEAD_AFTER_SECONDS = 15.0
"""Time without a heartbeat after which a worker is declared dead."""

OWN_HEARTBEATS = 64
"""Heartbeats of this process that a monitor remembers.

They cover more than `DEAD_AFTER_SECONDS`.
"""


class WorkerDeath(Enum):
    """The evidence that a worker is dead."""

    EXITED = "exited"
    """Its process has ended, with all its work."""

    NO_HEARTBEAT = "no heartbeat"
    """Its heartbeat stopped. It may wake up later, and find its runs ended."""


class WorkerMonitor:
    """Judges workers and remembers their heartbeats. A process has one.

    Args:
        dead_after_seconds: maximum time without a heartbeat. At most a third of it counts between
            two looks, so it must be more than three times the heartbeat interval and the sweep
            interval.
    """

    def __init__(
        self,
        databases: Databases,
        *,
        dead_after_seconds: float = DEAD_AFTER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._databases = databases
        self._dead_after_seconds = dead_after_seconds
        self._clock = clock
        self.rate_limited_log = RateLimitedLog(logging.getLogger("agentctl.runs"))
        self.oldest_heartbeat: int | None = None
        """The oldest heartbeat of the last `check_all`, in microseconds UTC.

        None without workers.
        """

        self.is_long_lived = False
        """True in a process that lives long enough to observe heartbeats."""

        self.on_lost_run: Callable[[EndedRun], None] | None = None
        """Called for each run that this process ends for a dead worker, unless None."""

        # By worker: a heartbeat, and the observed seconds when it was written.
        self._heartbeats: dict[str, tuple[int, float]] = {}
        # The stored heartbeats of this process, with the observed seconds at their times.
        self._own_heartbeats: deque[tuple[int, float]] = deque(maxlen=OWN_HEARTBEATS)
        # The clock of this monitor (`advance_clock`), and the change number at its last advance.
        self._observed_seconds = 0.0
        self._advanced_at = clock()
        self._version: int | None = None
        self._last_heartbeat: Heartbeat | None = None
        # The last worker that `check_exit` has read.
        self._checked_row: WorkerRow | None = None

    async def check_owner(self, owner: str | None) -> WorkerDeath | None:
        """Return the evidence that the owner of a run is dead; None if it may live.

        An owner without a row is dead, and so is a missing owner (None). Read the run before this
        call: its owner had a row at that time.
        """
        if owner is None:
            return WorkerDeath.EXITED

        self.advance_clock()
        row = await self._databases.system.read(workers.get(owner))
        if row is None:
            return WorkerDeath.EXITED
        return self._judge(row, await self._read_database_clock())

    async def check_exit(self, worker_id: str) -> WorkerDeath | None:
        """Return EXITED if the process of a worker is known to have ended.

        A worker is read from the database once.
        """
        if is_lock_free(self._databases.system.lock_folder, worker_id):
            return WorkerDeath.EXITED

        if self._checked_row is None or self._checked_row.worker_id != worker_id:
            self._checked_row = await self._databases.system.read(workers.get(worker_id))
        if self._checked_row is None or has_exited(_identify(self._checked_row)):
            return WorkerDeath.EXITED
        return None

    def observe(self, heartbeat: Heartbeat | None, at: float) -> None:
        """Remember a heartbeat of this process. Call it every few seconds.

        Args:
            heartbeat: the last one; None before the first one.
            at: the time after which it was stored, on the clock of this monitor.
        """
        if heartbeat is None or heartbeat is self._last_heartbeat:
            return

        self._last_heartbeat = heartbeat
        self.advance_clock()
        seconds = self._observed_seconds - max(self._clock() - at, 0.0)

        if self._own_heartbeats and heartbeat.beat < self._own_heartbeats[-1][0]:
            # The clock was set back: the times before cannot be compared.
            self._own_heartbeats.clear()
        if self._own_heartbeats:
            # The observed seconds advance in steps: a later heartbeat never counts as earlier.
            _, last_seconds = self._own_heartbeats[-1]
            seconds = max(seconds, last_seconds)
        self._own_heartbeats.append((heartbeat.beat, seconds))

    async def check_all(self) -> dict[str, WorkerDeath | None]:
        """Return the evidence of death, or None, for every worker that has a row."""
        self.advance_clock()
        return await self.judge_all(await self._databases.system.read(workers.list_workers()))

    async def judge_all(self, rows: Sequence[WorkerRow]) -> dict[str, WorkerDeath | None]:
        """Return the evidence of death, or None, for all workers.

        Args:
            rows: the rows of all workers, read after a call of `advance_clock`.
        """
        self.oldest_heartbeat = min((row.beat for row in rows), default=None)

        present_ids = {row.worker_id for row in rows}
        self._heartbeats = {
            worker_id: heartbeat
            for worker_id, heartbeat in self._heartbeats.items()
            if worker_id in present_ids
        }

        database_time = await self._read_database_clock()
        return {row.worker_id: self._judge(row, database_time) for row in rows}

    async def _read_database_clock(self) -> int | None:
        """Return the time of the database if it has to decide; None to use the own observations."""
        database = self._databases.system
        if self.is_long_lived or database.lock_folder is not None:
            return None
        return await database.clock()

    def advance_clock(self) -> None:
        """Add the time since the last look, if the database was written to since then.

        Called before the heartbeats are read, so that one that arrives in between is seen.
        """
        version = self._databases.system.changes()
        if version == self._version:
            return

        present = self._clock()
        # A third at most: after a suspension of this process, the others get time for a heartbeat.
        self._observed_seconds += min(present - self._advanced_at, self._dead_after_seconds / 3)
        self._advanced_at = present
        self._version = version

    def _judge(self, row: WorkerRow, database_time: int | None) -> WorkerDeath | None:
        """Return the evidence that a worker is dead; None if it may live."""
        process = _identify(row)
        lock_folder = self._databases.system.lock_folder
        if is_lock_free(lock_folder, row.worker_id) or has_exited(process):
            return WorkerDeath.EXITED

        if database_time is not None:
            silent_seconds = (database_time - row.beat) / 1_000_000
        else:
            beat, written_at = self._heartbeats.get(row.worker_id, (None, 0.0))
            if beat != row.beat:
                written_at = self._find_observed_seconds(row.beat)
                self._heartbeats[row.worker_id] = (row.beat, written_at)
            silent_seconds = self._observed_seconds - written_at

        return WorkerDeath.NO_HEARTBEAT if silent_seconds >= self._dead_after_seconds else None

    def _find_observed_seconds(self, beat: int) -> float:
        """Return the observed seconds at the time of a heartbeat.

        A heartbeat that is newer than all heartbeats of this process counts from now. An older
        heartbeat counts from the first one that this process remembers.
        """
        own_beats = [own_beat for own_beat, _ in self._own_heartbeats]
        if beat > max(own_beats, default=beat - 1):
            return self._observed_seconds

        index = bisect_left(own_beats, beat)
        _, next_seconds = self._own_heartbeats[index]
        if index == 0 or own_beats[index] == beat:
            return next_seconds

        # Between two heartbeats of this process: never later than the second one.
        earlier_beat, earlier_seconds = self._own_heartbeats[index - 1]
        return min(earlier_seconds + (beat - earlier_beat) / 1_000_000, next_seconds)


def _identify(row: WorkerRow) -> ProcessIdentity:
    return ProcessIdentity(row.host, row.boot_id, row.pid, row.process_start)
