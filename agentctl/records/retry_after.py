"""The header `Retry-After` of a response (RFC 9110 10.2.3)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `retry-after-ms`, or of `Retry-After` in seconds or as a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "")
        try:
            seconds = float(value) * unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())
