"""Histograms of durations, and byte counts for people."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class DurationHistogram:
    """Counts of durations in buckets. Not thread-safe: use it from one thread or under a lock.

    Args:
        bounds: ascending upper bounds of the buckets in seconds; longer durations count as well.

    Attributes:
        total: the sum of all durations in seconds.
    """

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self._counts)

    def cumulative_counts(self) -> Iterator[tuple[float, int]]:
        """Yield each bound and the number of durations up to it; the last bound is infinite."""
        count = 0
        for bound, more in zip((*self._bounds, float("inf")), self._counts, strict=True):
            count += more
            yield bound, count


def format_bytes(count: int) -> str:
    """Return a text such as `4 kB`, rounded down."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}"
        count //= 1_000
    return f"{count} TB"
