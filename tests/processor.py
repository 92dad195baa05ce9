"""The speed of the processor now, for bounds in CPU seconds."""

from __future__ import annotations

import time

__all__ = ["measure_slowness"]

_REFERENCE_SECONDS = 0.05
"""CPU time of the loop below on the slowest processor for which the bounds were chosen."""


def measure_slowness() -> float:
    """Return how many times as long as there a fixed loop takes now; at least 1.

    A second of CPU time is worth less on a virtual processor whose core has other work: two to four
    times were measured. A bound is multiplied by this ratio, measured directly after the work.
    """
    seconds = []
    for _ in range(3):
        begun = time.thread_time()
        sum(number * number for number in range(500_000))
        seconds.append(time.thread_time() - begun)
    return max(1.0, min(seconds) / _REFERENCE_SECONDS)
