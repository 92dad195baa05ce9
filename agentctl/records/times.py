"""Times: integer microseconds UTC inside, RFC 3339 with microseconds and Z on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

__all__ = ["Timestamp", "now", "rfc3339", "seconds"]


class _DateTime:
    """Says `format: date-time` where a JSON Schema is made from a record."""

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        return {**handler(core_schema), "format": "date-time"}


Timestamp = Annotated[str, _DateTime()]
"""A time on the wire, as `rfc3339` writes it (spec.md "Resources": format date-time)."""

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
