"""Hours and days of UTC, for tests whose server adds up runs by them."""

from __future__ import annotations

import time

__all__ = ["DAY", "HOUR", "wait_for_rest"]

HOUR = 3_600
DAY = 86_400


def wait_for_rest(period: int, seconds: float = 180.0) -> None:
    """Wait until the current hour or day lasts for some more seconds, in which a test ends."""
    while time.time() % period > period - seconds:
        time.sleep(1)
