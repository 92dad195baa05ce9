"""Values of AgentOS: times, contents, counters and texts.

A value of another type is treated as absent.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import orjson

from agentctl.records.kinds import Record
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.records.times import EARLIEST, LATEST, format_optional_time, parse_rfc3339

Built = dict[str, Any]

_SECONDS_PER_ERA = 253_402_300_800
"""Seconds of the year 10000: a larger number is not a time in seconds."""


def read_text(value: object) -> str | None:
    """Return a text, None if it is empty."""
    return value if isinstance(value, str) and value else None


def read_required(value: object) -> str:
    """Return a text, empty without one."""
    return read_text(value) or ""


def read_plain(value: object) -> str:
    """Return any value as text, empty without one."""
    return str(value or "")


def read_object(value: object) -> Built | None:
    """Return an object, None without one."""
    return value if isinstance(value, dict) else None


def read_objects(value: object) -> list[Built]:
    """Return the objects of a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def parse_moment(value: object) -> int | None:
    """Return a time of AgentOS in microseconds: seconds since the epoch, or an ISO 8601 text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value * 1_000_000) if 0 <= value < _SECONDS_PER_ERA else None
    if isinstance(value, str):
        try:
            given = datetime.fromisoformat(value)
            whole = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
            moment = int(whole.timestamp() * 1_000_000)
            return moment if EARLIEST <= moment <= LATEST else None
        except (ValueError, OverflowError):
            return None
    return None


def format_moment(value: object) -> str | None:
    """Return a time of AgentOS as RFC 3339, None without one."""
    moment = parse_moment(value)
    return format_optional_time(moment)


def format_content(value: object) -> str | None:
    """Return content as text: a list of text parts is joined, another value becomes JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in value]
        texts = [part for part in parts if isinstance(part, str)]
        if texts and len(texts) == len(parts):
            return "".join(texts)
    return orjson.dumps(value, default=str).decode()


def to_seconds(timestamp: str) -> int:
    """Return the seconds since the epoch of an RFC 3339 time."""
    return parse_rfc3339(timestamp) // 1_000_000


def read_status(value: object) -> str:
    """Return a status, in upper case; one that this interface does not have is kept."""
    return str(value or "").upper() or "UNKNOWN"


def read_count(value: object) -> int:
    """Return a number of AgentOS that counts, 0 for any other value."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def read_counters(metrics: object) -> dict[str, int]:
    """Build the nine token counters; those of a workflow are the sum of its steps."""
    counters = read_object(metrics) or {}
    steps = counters.get("steps")
    if isinstance(steps, dict):
        return sum_counters(
            read_counters(step.get("metrics", step)) for step in read_objects([*steps.values()])
        )
    return {name: read_count(counters.get(name)) for name in TOKEN_COUNTERS}


def write_counters(metrics: Record | None) -> Built:
    """Return counters without zeros and unknown ones."""
    return {name: value for name, value in (metrics or {}).items() if value}


def sum_counters(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    """Add token counters by name."""
    summands = list(counters)
    return {name: sum(each[name] for each in summands) for name in TOKEN_COUNTERS}
