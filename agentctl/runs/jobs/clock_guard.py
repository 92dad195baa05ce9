"""Detection of a wrong wall clock, before a process deletes data (docs/retention.md "Ages").

A clock that is wrong for a minute would delete all of that data, and nothing brings it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from agentctl.records.logs import RateLimitedLog
from agentctl.records.times import DAY, HOUR, now
from agentctl.store.databases import Databases
from agentctl.store.repositories import audit

JUMP = HOUR
"""Microseconds that the wall clock may advance beyond the steady clock between two observations."""

HOLD = DAY
"""Microseconds of the steady clock for which a doubtful clock must run on before it is trusted, and
the age of the newest row from which the clock of a new process is doubtful."""


def read_steady_clock() -> int:
    """Return the time since the start of the machine in microseconds, with suspensions if known."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000
    return time.monotonic_ns() // 1_000


class ClockGuard:
    """The wall clock of this process, compared with its steady clock.

    The clock of a new process is doubtful until `compare` is called. A clock that jumps ahead
    becomes doubtful; it is trusted again when it jumps back, or after a day without a jump.

    Args:
        wall: the wall clock in microseconds.
        steady: a clock that is never set, in microseconds.

    Attributes:
        is_compared: True once `compare` was called.
        present: the time of the wall clock at the last observation, in microseconds UTC.
    """

    def __init__(
        self, *, wall: Callable[[], int] = now, steady: Callable[[], int] = read_steady_clock
    ) -> None:
        self.is_compared = False
        self._wall = wall
        self._steady = steady
        self._seen = steady()
        self.present = wall()
        self._offset = self.present - self._seen
        self._before_jump: int | None = None
        self._trusted_from = self._seen + HOLD

    @property
    def is_trusted(self) -> bool:
        return self._seen >= self._trusted_from

    def compare(self, newest: int | None) -> None:
        """Trust the clock of a new process if it is at most a day ahead of `newest`.

        That is the time of the newest row; None without rows.
        """
        self.is_compared = True
        if newest is not None and self._wall() - newest <= HOLD:
            self._trusted_from = self._seen

    def observe(self) -> bool:
        """Read both clocks, every few seconds. Return True if the wall clock has jumped ahead."""
        steady, self.present = self._steady(), self._wall()
        offset, passed = self.present - steady, steady - self._seen
        self._seen = steady
        if offset - self._offset > JUMP or passed > HOLD:
            if self._before_jump is None:
                self._before_jump = self._offset
            self._offset = offset
            self._trusted_from = steady + HOLD
            return True
        self._offset = offset
        if self._before_jump is not None and offset - self._before_jump <= JUMP:
            self._before_jump = None
            self._trusted_from = steady
        elif self._before_jump is not None and self.is_trusted:
            self._before_jump = None
        return False


async def observe_clock(guard: ClockGuard, databases: Databases, log: RateLimitedLog) -> None:
    """Observe the clock, and compare it once with the newest entry of the audit log.

    Raises:
        Unavailable: the system database does not answer; the next call compares.
    """
    if guard.observe():
        log.log(
            "the clock of this machine was set ahead by more than an hour: old data is not deleted"
            " until the clock is set back, or for a day"
        )
    if not guard.is_compared:
        guard.compare(await databases.system.read(audit.get_newest_time()))
