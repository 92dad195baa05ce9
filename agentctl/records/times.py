"""Times: integer microseconds UTC inside, RFC 3339 with microseconds and Z on the wire."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any

__all__ = [
    "ParsedTimestamp",
    "Timestamp",
    "format_rfc3339",
    "format_span",
    "now",
    "parse_rfc3339",
    "whole_seconds",
]


class _DateTime:
    """Says `format: date-time` where a JSON Schema is made from a record."""

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        return {**handler(core_schema), "format": "date-time"}


Timestamp = Annotated[str, _DateTime()]
"""A time on the wire, as `rfc3339` writes it (spec.md "Resources": format date-time)."""


class _DateTimeText:
    """Says `type: string, format: date-time` of an integer that is given as a date-time."""

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        return {"type": "string", "format": "date-time"}


ParsedTimestamp = Annotated[int, _DateTimeText()]
"""Microseconds of a time that comes over the wire as `microseconds` reads it."""

_DATE_TIME = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,30})?(Z|[+-]\d\d:[0-5]\d)", re.ASCII | re.IGNORECASE
)
"""`date-time` of RFC 3339 5.6."""

_MICROSECOND = timedelta(microseconds=1)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now() -> int:
    """The present, in microseconds since the epoch, UTC."""
    return time.time_ns() // 1_000


def format_rfc3339(microseconds: int) -> str:
    """`2026-11-20T08:18:10.000123Z` for microseconds since the epoch."""
    whole, rest = divmod(microseconds, 1_000_000)
    return f"{_format_second(whole)}.{rest:06d}Z"


@lru_cache(maxsize=4_096)
def _format_second(whole: int) -> str:
    """What belongs together was written in the same seconds: a run's own times, a list's."""
    return (_EPOCH + timedelta(seconds=whole)).isoformat()[: -len("+00:00")]


def parse_rfc3339(text: str) -> int:
    """Microseconds since the epoch for an RFC 3339 date-time; what is finer is cut off.

    Raises:
        ValueError: it is none, or a day or an hour that does not exist.
    """
    if _DATE_TIME.fullmatch(text) is None:
        raise ValueError("not an RFC 3339 date-time")
    return (datetime.fromisoformat(text.upper()) - _EPOCH) // _MICROSECOND


def whole_seconds(microseconds: int) -> int:
    """Whole seconds since the epoch, as messages and events carry them."""
    return microseconds // 1_000_000


def format_span(seconds: float) -> str:
    """A span for people, in its one or two largest units: `45 s`, `12 min`, `3 h 5 min`, `9 d`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = round(minutes / 60)
    if minutes < 24 * 60:
        return _join_units(minutes // 60, "h", minutes % 60, "min")
    return _join_units(hours // 24, "d", hours % 24, "h")


def _join_units(large: int, name: str, small: int, small_name: str) -> str:
    return f"{large} {name} {small} {small_name}" if small else f"{large} {name}"
