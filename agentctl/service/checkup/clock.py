"""The clock: tokens live and die by it."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from agentctl.records.times import rfc3339
from agentctl.service.checkup.finding import Finding, ok, wrong

__all__ = ["check_clock"]

_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_LATEST = datetime(2100, 1, 1, tzinfo=UTC).timestamp()


def check_clock(present: float | None = None) -> Finding:
    """Whether the clock can be right: not before this was written, and not in another century."""
    present = time.time() if present is None else present
    text = f"it is {rfc3339(int(present) * 1_000_000)[:19]}Z"
    if _EARLIEST <= present < _LATEST:
        return ok("clock", text)
    return wrong("clock", f"{text}: it cannot be", "set the clock: timedatectl set-ntp true")
