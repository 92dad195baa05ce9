"""Stored JSON texts, which another program may have damaged (docs/databases.md "Damaged data")."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson

from agentctl.errors import Unavailable

Parsed = TypeVar("Parsed")


def parse_stored(text: str, kind: type[Parsed]) -> Parsed | None:
    """Return the value of a stored JSON text; None if it is not JSON, or not of the type."""
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, kind) else None


def parse_records(text: str) -> list[dict[str, Any]] | None:
    """Return the objects of a stored JSON array; None if the text is damaged."""
    entries = parse_stored(text, list)
    is_whole = entries is not None and all(isinstance(entry, dict) for entry in entries)
    return entries if is_whole else None


def require(parsed: Parsed | None) -> Parsed:
    """Return a parsed value.

    Raises:
        Unavailable: its text is damaged.
    """
    if parsed is None:
        raise build_damage()
    return parsed


def build_damage() -> Unavailable:
    """Return the error of a read of damaged data."""
    return Unavailable(
        "The database is damaged",
        cause="a stored JSON text is not valid",
        hint="restore the database from a backup",
    )
