"""Waiting for a database that is away for a while, where giving up would end a run for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentctl import errors

__all__ = ["PATIENCE_SECONDS", "patiently"]

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
"""How long a run waits at most for the database that it needs to go on."""

PAUSE_SECONDS = 0.25


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    *,
    stopped: asyncio.Future[None],
    seconds: float = PATIENCE_SECONDS,
) -> T:
    """What `attempt` returns, once the database is there.

    Args:
        attempt: tries it; the same again must do no harm.
        stopped: done when nobody wants it any more.
        seconds: when to give up.

    Raises:
        Unavailable: it did not come back in time, or nobody waits for it any more.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while True:
        try:
            return await attempt()
        except errors.Unavailable:
            if stopped.done() or clock() >= deadline:
                raise
        await asyncio.wait({stopped}, timeout=PAUSE_SECONDS)
