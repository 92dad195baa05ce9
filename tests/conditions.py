"""Conditions that a test waits for, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from agentctl.interface.operations import Operations
from tests.loops import wait_until

__all__ = ["wait_for", "wait_for_run"]


def wait_for(
    condition: Callable[[], Any],
    seconds: float = 60.0,
    problem: object = "the condition was not met in time",
) -> Any:
    """Wait for a condition, checked after 10 to 50 ms, and return its first true value.

    Most conditions ask a server or read a file, so they are checked more and more rarely.

    Args:
        seconds: time after which the test fails.
        problem: the text of the failure, or a function that returns it then.
    """
    deadline = time.monotonic() + seconds
    pause = 0.01
    while not (met := condition()):
        assert time.monotonic() < deadline, problem() if callable(problem) else problem
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return met


async def wait_for_run(
    operations: Operations, run_id: str, *statuses: str, seconds: float = 60.0
) -> dict[str, Any]:
    """Wait until a run has one of some statuses, by default a final one; return its record."""
    wanted = statuses or ("COMPLETED", "ERROR", "CANCELLED")

    async def reached() -> Any:
        run = (await operations.get_run(run_id)).value
        return run if run["status"] in wanted else None

    return dict(await wait_until(reached, seconds))
