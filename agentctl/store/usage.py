"""The nine counters of a session (contract.md 3), kept as JSON text."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from agentctl.records.sessions import COUNTERS

__all__ = ["NO_USAGE", "added", "counted"]

NO_USAGE: str = orjson.dumps(dict.fromkeys(COUNTERS, 0)).decode()
"""What a new session has used."""


def counted(metrics: str | None) -> dict[str, int]:
    """The counters in a JSON object; those that it does not have are 0."""
    stored = orjson.loads(metrics) if metrics else {}
    return {name: int(stored.get(name) or 0) for name in COUNTERS}


def added(metrics: str, delta: Mapping[str, int]) -> tuple[str, int]:
    """The counters with `delta` added: as JSON text, and their total_tokens."""
    total = counted(metrics)
    for name in COUNTERS:
        total[name] += delta.get(name, 0)
    return orjson.dumps(total).decode(), total["total_tokens"]
