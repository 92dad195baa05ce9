"""Conditions that a test waits for, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["wait_for"]


def wait_for(
    condition: Callable[[], Any],
    seconds: float = 60.0,
    problem: object = "the condition was not met in time",
) -> Any:
    """Wait for a condition, checked every 10 ms, and return its first true value.

    Args:
        seconds: time after which the test fails.
        problem: the text of the failure, or a function that returns it then.
    """
    deadline = time.monotonic() + seconds
    while not (met := condition()):
        assert time.monotonic() < deadline, problem() if callable(problem) else problem
        time.sleep(0.01)
    return met
