"""Conditions that a test waits for."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Programs without agentctl wait for conditions too.
    from agentctl.interface.operations import Operations

__all__ = ["PATIENCE", "wait_for", "wait_for_run", "wait_until"]

PATIENCE = float(os.environ.get("AGENTCTL_TEST_PATIENCE", "300"))
"""Seconds after which a wait of a test times out: for a start, an answer or an end.

It costs time only when a test fails, so that it is long enough for the busiest machine. It is never
a bound that means something: a test that must show that the product acts in time counts what
happens before, or compares the order of events. `tests/architecture/test_patience.py` finds other
numbers of seconds in waits.
"""


def wait_for(
    condition: Callable[[], Any], *, problem: object = "the condition was not met in time"
) -> Any:
    """Wait for a condition, checked after 10 to 50 ms, and return its first true value.

    Most conditions ask a server or read a file, so they are checked more and more rarely.

    Args:
        problem: the text of the failure, or a function that returns it then.
    """
    deadline = time.monotonic() + PATIENCE
    pause = 0.01
    while not (met := condition()):
        assert time.monotonic() < deadline, problem() if callable(problem) else problem
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return met


async def wait_until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition, checked after 5 to 50 ms, and return its first true value.

    A condition that is awaited asks a server, so it is checked more and more rarely.
    """
    # Not the clock of the loop, which a test may set ahead.
    deadline = time.monotonic() + PATIENCE
    pause = 0.005
    while True:
        met = condition()
        if inspect.isawaitable(met):
            met = await met
            pause = min(pause * 1.5, 0.05)
        if met:
            return met
        assert time.monotonic() < deadline, "the condition was not met in time"
        await asyncio.sleep(pause)


async def wait_for_run(operations: Operations, run_id: str, *statuses: str) -> dict[str, Any]:
    """Wait until a run has one of some statuses, by default a final one; return its record."""
    wanted = statuses or ("COMPLETED", "ERROR", "CANCELLED")

    async def reached() -> Any:
        run = (await operations.runs.get(run_id)).value
        return run if run["status"] in wanted else None

    return dict(await wait_until(reached))
