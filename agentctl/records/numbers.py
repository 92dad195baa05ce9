"""How long things took: counted into ranges, cheap enough to be done always.

Numbers of bytes, for people.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

__all__ = ["DurationHistogram", "format_bytes"]


class DurationHistogram:
    """Counts of durations by range. For one thread, or for those that hold the same lock.

    Args:
        bounds: upper bounds of the ranges in seconds, rising; what is longer is counted as well.

    Attributes:
        total: the sum of all of them, in seconds.
    """

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self._counts)

    def cumulative_counts(self) -> Iterator[tuple[float, int]]:
        """For each bound, how many took so long at most; the last bound is infinite."""
        count = 0
        for bound, more in zip((*self._bounds, float("inf")), self._counts, strict=True):
            count += more
            yield bound, count


def format_bytes(count: int) -> str:
    """`4 kB`, rounded down."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}"
        count //= 1_000
    return f"{count} TB"
