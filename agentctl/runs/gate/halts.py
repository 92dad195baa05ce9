"""The halts that this process obeys, and the proof that all processes obey a halt.

A process knows the halts of a change number. It may start a call only while it knows that this
number is still the last one: for `PERMIT_SECONDS` after the begin of a read, or of a heartbeat,
that has returned it. A process that cannot read the halts starts nothing.

A new halt waits for the processes whose workers have a row. So a process starts nothing either
once its heartbeat is so old that others may declare it dead, and remove its row.

So a new halt is obeyed everywhere `PERMIT_SECONDS` after its commit, whatever processes are stopped
or cut off from the database. Normally that takes some milliseconds: the processes are notified,
read the halts, and confirm it in the rows of their workers (decision 146).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from agentctl import errors
from agentctl.records.halts import HaltScope
from agentctl.records.logs import RateLimitedLog
from agentctl.records.times import now
from agentctl.runs.gate.halting import end_due_halts
from agentctl.runs.workers.liveness import DEAD_AFTER_SECONDS, WorkerDeath, WorkerMonitor
from agentctl.runs.workers.worker import PERMIT_SECONDS, Worker, read_boot_clock
from agentctl.store.database import HALTS_TOPIC
from agentctl.store.databases import Databases
from agentctl.store.repositories import halts
from agentctl.store.repositories.halts import ActiveHalts, HaltRow

Scope = tuple[HaltScope, str | None]
"""The kind of a scope, and the id in it; None for `all`."""

CLOCK_MARGIN_SECONDS = 0.5
"""Time in addition to `PERMIT_SECONDS` that a new halt waits for processes that do not confirm it.

The clocks of machines do not run equally fast.
"""

ALIVE_SECONDS = DEAD_AFTER_SECONDS * 2 / 3
"""Time after a heartbeat for which no other process declares this one dead, with a margin.

The clocks of machines do not run equally fast.
"""

RETRY_SECONDS = 0.5
"""Pause between two attempts to read the halts while the database does not answer."""

EARLY_SECONDS = 0.1
"""Minimum time between two looks at a SQLite file, which changes with every write."""

SETTLE_SECONDS = 2.0
"""Maximum time that a confirmation waits for calls that have passed the gate and have not begun."""

POLL_SECONDS = 0.005
"""Interval of the looks for changes that are under way, calls that begin, and confirmations."""

EXIT_CHECK_SECONDS = 0.25
"""Interval of the looks for processes that have exited."""

UNKNOWN = HaltRow(
    halt_id="",
    scope="all",
    scope_id=None,
    reason="the state of halts cannot be read",
    stop_running=0,
    created_by=None,
    created_at=0,
    until=None,
)
"""The halt that a process obeys while it does not know the halts."""

_log = logging.getLogger("agentctl.runs")
_rate_limited = RateLimitedLog(_log)


class Starting:
    """A call that has passed the gate and has not begun yet."""

    __slots__ = ("ends_at", "number")

    def __init__(self, number: int, ends_at: float) -> None:
        self.number = number
        self.ends_at = ends_at


class Halts:
    """The halts that this process obeys.

    Belongs to one event loop, except `find` and `starting`.
    """

    def __init__(
        self, databases: Databases, worker: Worker, *, clock: Callable[[], float] = read_boot_clock
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called on the event loop after the halts have changed."""

        self._databases = databases
        self._worker = worker
        self._clock = clock

        # The last read: its halts, their change number, its begin, and the worker of this process
        # then, which has no row if it is None.
        self._active: tuple[HaltRow, ...] = ()
        self._number = -1
        self._read_at = float("-inf")
        self._reader: str | None = ""
        # The worker and the change number that were confirmed last.
        self._confirmed: tuple[str | None, int] = (None, 0)

        # Held while the halts are read.
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._starting: set[Starting] = set()

        self._version: Callable[[], int] | None = None
        self._is_file = False
        self._seen_version: int | None = None
        self._looked_at = float("-inf")

    @property
    def is_known(self) -> bool:
        """True if no halt can have been created that this process does not know."""
        # A row that was written after the read: a halt in between has not waited for this process.
        worker_id = self._worker.registered_id
        if self._reader != worker_id:
            return False

        # The clock is read once: every call of a model or a tool asks this several times.
        at = self._clock()
        if worker_id is not None and at - self._worker.alive_at >= ALIVE_SECONDS:
            # Another process may have removed the row: no halt waits for this process then.
            return False

        permit = self._worker.permit
        number = self._number
        if permit is None or permit.halts_number < number:
            return at - self._read_at < PERMIT_SECONDS
        if permit.halts_number > number:
            return False
        return at - max(self._read_at, permit.at) < PERMIT_SECONDS

    @property
    def is_clear(self) -> bool:
        """True if nothing is halted, and that is known. May be asked in any thread."""
        # In this order: the halts are replaced before the time of their read.
        return self.is_known and not self._active

    @property
    def _has_row(self) -> bool:
        """False if another process may have removed the row of the worker: no halt waits for it."""
        if self._worker.registered_id is None:
            return True
        return self._clock() - self._worker.alive_at < ALIVE_SECONDS

    @property
    def active(self) -> tuple[HaltRow, ...]:
        """The halts that this process knows and whose time has not come, oldest first."""
        moment = now()
        return tuple(row for row in self._active if row.is_active_at(moment))

    def find(self, scopes: Collection[Scope]) -> HaltRow | None:
        """Return the oldest halt of one of some scopes; None if there is none. It costs nothing.

        While the halts are not known, it is `UNKNOWN`.
        """
        if not self.is_known:
            return UNKNOWN
        if not self._active:
            return None

        moment = now()
        for row in self._active:
            if (row.scope, row.scope_id) in scopes and row.is_active_at(moment):
                return row
        return None

    async def learn(self) -> None:
        """Read the halts unless they are known.

        Raises:
            Unavailable: the system database does not answer.
        """
        if not self.is_known:
            await self.refresh()

    async def wait_until(self, is_open: Callable[[], bool]) -> None:
        """Wait until a condition on the halts is true. It may be cancelled at any time."""
        while True:
            # Before the look: a change after it sets this event.
            changed = self._changed
            retry_seconds = await self._try_to_learn()
            if retry_seconds is not None:
                await asyncio.sleep(retry_seconds)
                continue
            if is_open():
                return

            moment = now()
            ends = [row.until for row in self._active if row.until and row.until > moment]
            seconds = (min(ends) - moment) / 1_000_000 if ends else None
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await changed.wait()

    async def _try_to_learn(self) -> float | None:
        """Read the halts unless they are known.

        Returns:
            None if they are known now; otherwise the seconds after which to try again.
        """
        if not self._has_row:
            _rate_limited.log("runs wait: the heartbeat of this process cannot be stored")
            return RETRY_SECONDS
        if self.is_known:
            return None

        try:
            await self.refresh()
        except errors.AgentctlError as error:
            _rate_limited.log("runs wait: the halts cannot be read: %s", error.detail)
            return RETRY_SECONDS
        # If they are not known now, another change is under way.
        return None if self.is_known else POLL_SECONDS

    @contextmanager
    def starting(self, seconds: float) -> Iterator[None]:
        """Enclose the steps between the gate and the begin of a call that needs several.

        A halt is confirmed after them, or after some seconds from now.
        """
        start = Starting(self._number, self._clock() + seconds)
        self._starting.add(start)
        try:
            yield
        finally:
            self._starting.discard(start)

    def note_start(self, seconds: float) -> None:
        """Let confirmations wait for a call that a library begins within some seconds from now."""
        at = self._clock()
        for start in [start for start in self._starting if start.ends_at <= at]:
            self._starting.discard(start)
        self._starting.add(Starting(self._number, at + seconds))

    async def refresh(self) -> None:
        """Read the halts; of concurrent callers, each gets a read that began after its call.

        Raises:
            Unavailable: the system database does not answer.
        """
        called_at = self._clock()
        async with self._lock:
            if self._read_at >= called_at and self._reader == self._worker.registered_id:
                return

            # Before the read: what happens during it is not known afterwards.
            reader = self._worker.registered_id
            at = self._clock()
            active_halts = await self._databases.system.read(halts.list_active())
            self._take(active_halts, reader, at)

    def _take(self, active_halts: ActiveHalts, reader: str | None, at: float) -> None:
        """Replace the halts by those of a read, and wake the callers that wait for a change."""
        has_changed = active_halts.change_number != self._number
        self._number = active_halts.change_number
        self._active = tuple(active_halts.halts)
        self._reader = reader
        self._read_at = at

        if has_changed:
            # A caller that waits for the next change gets an event of its own.
            self._changed.set()
            self._changed = asyncio.Event()
            self.on_change()

    def watch(self, notify: Callable[[], None] | None = None) -> None:
        """Begin to follow the changes of halts that other processes make.

        Args:
            notify: called after each change, if the database has notifications.
        """
        system = self._databases.system
        self._version = system.watch(HALTS_TOPIC, notify)
        # Kept: a database reads the links of its path to tell its folder.
        self._is_file = system.lock_folder is not None

    async def observe(self) -> None:
        """Read the halts again if they may have changed, and confirm them.

        It is called every few milliseconds while runs execute, and otherwise twice a second.

        Raises:
            Unavailable: the system database does not answer.
        """
        if self._may_have_changed():
            await self.refresh()
        await self._confirm()

    def _may_have_changed(self) -> bool:
        permit = self._worker.permit
        if permit is not None and permit.halts_number > self._number:
            return True
        if self._version is None or self._worker.registered_id is None:
            return False

        at = self._clock()
        if self._is_file and at - self._looked_at < EARLY_SECONDS:
            return False

        self._looked_at = at
        version = self._version()
        has_changed = version != self._seen_version
        self._seen_version = version
        return has_changed

    async def _confirm(self) -> None:
        """Store that this process obeys the halts that it has read."""
        state = (self._worker.registered_id, self._number)
        worker_id, number = state
        if worker_id is None or self._reader != worker_id or number <= 0:
            return
        if state == self._confirmed:
            return

        await self._settle(number)
        await self._databases.system.write(halts.confirm(worker_id, number))
        self._confirmed = state

    async def _settle(self, number: int) -> None:
        """Wait until the calls have begun that have passed the gate before a change number."""
        latest = self._clock() + SETTLE_SECONDS
        while (at := self._clock()) < latest:
            if not any(start.number < number and start.ends_at > at for start in [*self._starting]):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def wait_until_obeyed(self, number: int, monitor: WorkerMonitor) -> None:
        """Return when no process starts a call that a halt stops. Call it after the commit.

        Args:
            number: the change number of the halt.
            monitor: recognizes processes of this machine that have exited.

        Raises:
            Unavailable: the system database does not answer.
        """
        began = self._clock()
        latest = began + PERMIT_SECONDS + CLOCK_MARGIN_SECONDS
        await self.refresh()
        await self._confirm()

        exited_ids = set[str]()
        next_check = began + EXIT_CHECK_SECONDS
        while True:
            unconfirmed_ids = await self._databases.system.read(halts.list_unconfirmed(number))
            living_ids = [worker_id for worker_id in unconfirmed_ids if worker_id not in exited_ids]
            if not living_ids:
                return

            at = self._clock()
            if at >= latest:
                # Whatever they do: what they know is too old to start a call with.
                _log.warning("a halt was not confirmed by the workers %s", ", ".join(living_ids))
                return
            if at >= next_check:
                next_check = at + EXIT_CHECK_SECONDS
                for worker_id in living_ids:
                    if await monitor.check_exit(worker_id) is WorkerDeath.EXITED:
                        exited_ids.add(worker_id)
            await asyncio.sleep(POLL_SECONDS)

    async def end_due(self) -> None:
        """Store the ends of the halts whose time has come; a database without them is not asked."""
        moment = now()
        if any(row.until is not None and row.until <= moment for row in self._active):
            await end_due_halts(self._databases.system)
            await self.refresh()
