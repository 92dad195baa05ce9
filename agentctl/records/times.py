"""Times: integer microseconds UTC in the code, RFC 3339 with microseconds and Z in JSON; durations.

pydantic reads more than RFC 3339 has (decision 141).
"""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any

HOUR = 3_600_000_000
"""Microseconds of an hour."""

DAY = 24 * HOUR
"""Microseconds of a day."""

_DATE_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,30})?(Z|[+-]\d\d:[0-5]\d)", re.ASCII | re.IGNORECASE
)
"""The `date-time` of RFC 3339 5.6."""

_MICROSECOND = timedelta(microseconds=1)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EARLIEST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The first time that can be written: the year 1."""

LATEST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The last time that can be written: the end of the year 9999."""


class _DateTime:
    """The JSON Schema `format: date-time` of a string."""

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        return {**handler(core_schema), "format": "date-time"}


Timestamp = Annotated[str, _DateTime()]
"""A time in JSON, as `format_rfc3339` writes it."""


class _DateTimeText:
    """The JSON Schema of a date-time that the server parses to an integer."""

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        return {"type": "string", "format": "date-time"}


ParsedTimestamp = Annotated[int, _DateTimeText()]
"""Microseconds of a date-time parameter, as `parse_rfc3339` returns them."""


def now() -> int:
    """Return the current time in microseconds since the epoch, UTC."""
    return time.time_ns() // 1_000


def now_in_seconds() -> int:
    """Return the current time in whole seconds since the epoch, as messages have it."""
    return now() // 1_000_000


def format_rfc3339(microseconds: int) -> str:
    """Return a text such as `2026-11-20T08:18:10.000123Z` for microseconds since the epoch.

    Raises:
        OverflowError: the time is before `EARLIEST` or after `LATEST`. What `parse_rfc3339` returns
            is not; a time that is computed from it can be.
    """
    seconds, microsecond = divmod(microseconds, 1_000_000)
    return f"{_format_second(seconds)}.{microsecond:06d}Z"


def format_optional_time(microseconds: int | None) -> str | None:
    """Return the text of `format_rfc3339`; None if there is no time."""
    return None if microseconds is None else format_rfc3339(microseconds)


@lru_cache(maxsize=4_096)
def _format_second(seconds: int) -> str:
    """Format a second; cached, because the times of a run or list share their seconds."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat().removesuffix("+00:00")


def parse_rfc3339(text: str) -> int:
    """Return the microseconds since the epoch of an RFC 3339 date-time, rounded down.

    Raises:
        ValueError: the text is not a date-time, the day or hour does not exist, or the time is in
            the year 0 or 10000 in UTC, which `format_rfc3339` cannot write.
    """
    if _DATE_TIME.fullmatch(text) is None:
        raise ValueError("not an RFC 3339 date-time")
    moment = (datetime.fromisoformat(text.upper()) - _EPOCH) // _MICROSECOND
    if not EARLIEST <= moment <= LATEST:
        raise ValueError("not a time of the years 1 to 9999 in UTC")
    return moment


def whole_seconds(microseconds: int) -> int:
    """Return whole seconds since the epoch, as in messages and events."""
    return microseconds // 1_000_000


def format_elapsed(seconds: float) -> str:
    """Format a duration: `12 ms`, `0.4 s`, `9.5 s`, from ten seconds on as `format_span`."""
    # From 0.0995 on, 0.1 is shown; from 9.95 on, 10.
    if seconds < 0.0995:
        return f"{max(0, round(seconds * 1_000))} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return format_span(seconds)


def format_span(seconds: float) -> str:
    """Return a time span in one or two units: `45 s`, `12 min`, `3 h 5 min`, `9 d`."""
    rounded_seconds = max(0, round(seconds))
    if rounded_seconds < 60:
        return f"{rounded_seconds} s"

    minutes = round(rounded_seconds / 60)
    if minutes < 60:
        return f"{minutes} min"

    hours = round(minutes / 60)
    if minutes < 24 * 60:
        return _join_units(minutes // 60, "h", minutes % 60, "min")
    return _join_units(hours // 24, "d", hours % 24, "h")


def _join_units(large: int, large_unit: str, small: int, small_unit: str) -> str:
    if not small:
        return f"{large} {large_unit}"
    return f"{large} {large_unit} {small} {small_unit}"


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `retry-after-ms`, or of `Retry-After` in seconds or as a date.

    The header of a response: RFC 9110 10.2.3. None if it is missing or not valid.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            seconds = float(value) * unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds

    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())


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
    """

    __slots__ = ("_bounds", "_counts", "total")

    total: float
    """The sum of all durations in seconds."""

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
        for bound, bucket_count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            count += bucket_count
            yield bound, count
