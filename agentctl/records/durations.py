"""Durations as counts of buckets: for the metrics of a process, and for stored sums.

A stored bucket is a range of durations whose ends differ by 9%, so that a percentile is at most
4.5% from the duration that has it. Stored counts are JSON objects: the number of a bucket, as text,
and its count. The buckets of a metric have the bounds that its histogram names.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

BUCKETS_PER_DOUBLING = 8
"""Buckets between a duration and twice that duration."""

MINIMUM = 1_000
"""Microseconds of the first bucket; shorter durations are in it, too."""


def find_bucket(duration: int) -> str:
    """Return the name of the bucket of a duration in microseconds."""
    ratio = max(duration, MINIMUM) / MINIMUM
    return str(round(BUCKETS_PER_DOUBLING * math.log2(ratio)))


def find_percentile(counts: Mapping[str, int], share: float) -> float | None:
    """Return the duration, in seconds, that a share of all durations does not exceed.

    Args:
        share: greater than 0, at most 1.

    Returns:
        The middle of its bucket; None without durations.
    """
    rank = math.ceil(share * sum(counts.values()))
    for bucket in sorted(counts, key=int):
        rank -= counts[bucket]
        if rank <= 0:
            middle: float = MINIMUM * 2 ** (int(bucket) / BUCKETS_PER_DOUBLING)
            return round(middle / 1_000_000, 6)
    return None


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
