"""Tools that end only when a test releases them, even after a cancel."""

from __future__ import annotations

import asyncio
import threading

from tests.kit.conditions import PATIENCE

opened = threading.Event()
"""Releases the tools."""


def blocked() -> str:
    """Block the thread, longer than a test waits for its end."""
    opened.wait(2 * PATIENCE)
    return "late"


async def stubborn() -> str:
    """Ignore every cancellation."""
    while not opened.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue
    return "late"


async def polite() -> str:
    """Take long, and stop when cancelled."""
    await asyncio.sleep(600)
    return "late"
