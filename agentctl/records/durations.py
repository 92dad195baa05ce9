"""Durations as counts of buckets: sums of them have percentiles, too.

A bucket is a range of durations whose ends differ by 9%, so that a percentile is at most 4.5% from
the duration that has it. Counts are JSON objects: the number of a bucket, as text, and its count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

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
        counts: the count of each bucket.
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
