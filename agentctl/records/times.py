"""Times: integer microseconds UTC inside, RFC 3339 with microseconds and Z on the wire."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

__all__ = ["now", "rfc3339", "seconds"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now() -> int:
    """The present, in microseconds since the epoch, UTC."""
    return time.time_ns() // 1_000


def rfc3339(microseconds: int) -> str:
    """`2026-11-20T08:18:10.000123Z` for microseconds since the epoch."""
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds(microseconds: int) -> int:
    """Whole seconds since the epoch, as messages and events carry them."""
    return microseconds // 1_000_000
