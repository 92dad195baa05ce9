"""Tasks that nobody waits for any more: cancelled, and held until they have ended."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["leave"]

_tasks: set[asyncio.Task[Any]] = set()


def leave(task: asyncio.Task[Any]) -> None:
    """Cancel a task for good. One that swallows its cancellation runs on, unheard."""
    if task.done():
        return
    task.cancel()
    _tasks.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    """Let go of a task that ended, its exception seen."""
    _tasks.discard(task)
    if not task.cancelled():
        task.exception()
