"""Values of AgentOS: texts, objects, times and counters.

A value of another type is treated as absent.
"""

from __future__ import annotations

from typing import Any

from agentctl.records.kinds import Record
from agentctl.records.times import parse_rfc3339

Built = dict[str, Any]
"""An object in the shape of AgentOS."""


def read_text(value: object) -> str | None:
    """Return a text, None if it is empty."""
    return value if isinstance(value, str) and value else None


def read_object(value: object) -> Built | None:
    """Return an object; None for any other value."""
    return value if isinstance(value, dict) else None


def read_objects(value: object) -> list[Built]:
    """Return the objects of a list; an empty list for any other value."""
    if not isinstance(value, list):
        return []
    return [item for item in value if isinstance(item, dict)]


def to_seconds(timestamp: str) -> int:
    """Return the seconds since the epoch of an RFC 3339 time."""
    return parse_rfc3339(timestamp) // 1_000_000


def write_counters(metrics: Record | None) -> Built:
    """Return the counters that are known and not zero."""
    return {name: value for name, value in (metrics or {}).items() if value}
