"""Tools that end when a test lets them, whatever they are told."""

from __future__ import annotations

import asyncio
import threading

opened = threading.Event()
"""Lets them go."""


def blocked() -> str:
    """Block the thread, as time.sleep(600) does."""
    opened.wait(60)
    return "late"


async def stubborn() -> str:
    """Swallow every cancellation."""
    while not opened.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue
    return "late"


async def polite() -> str:
    """Take long, and stop when told to."""
    await asyncio.sleep(600)
    return "late"
