"""CPU time that programs other than the benchmarks use meanwhile."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from bench.load import list_processes

MINIMUM_SECONDS = 1.0
"""A shorter time than this has too few ticks of the clock; the share before it counts."""

_HERTZ = os.sysconf("SC_CLK_TCK")
_BECOME_SUBREAPER = 36


class OtherWork:
    """The share of all cores that other programs have used since the last call.

    Children whose parent ends, such as a database server, become children of this process, so that
    their CPU time is that of the benchmarks.
    """

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
        self._before = self._now()
        self._share = 0.0

    def __call__(self) -> float:
        before = self._before
        now = self._now()
        if now[0] - before[0] >= MINIMUM_SECONDS:
            used = (now[1] - before[1]) - (now[2] - before[2])
            self._share = max(0.0, used / (now[0] - before[0]) / (os.cpu_count() or 1))
            self._before = now
        return self._share

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Return the time, and the CPU seconds of the machine and of the benchmarks."""
        first = Path("/proc/stat").read_text().partition("\n")[0]
        user, nice, system, _idle, _wait, *others = map(int, first.split()[1:9])
        busy = user + nice + system + sum(others)
        return time.monotonic(), busy / _HERTZ, count_own_seconds()


def count_own_seconds() -> float:
    """Return the CPU seconds of this process and of its children, with those that have ended."""
    return sum(map(_count_ticks, list_processes(os.getpid()))) / _HERTZ


def _count_ticks(process_id: int) -> int:
    """Return the ticks of a process and of its children that have ended."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:  # The process has ended.
        return 0
    return sum(int(field) for field in text.rpartition(")")[2].split()[11:15])
