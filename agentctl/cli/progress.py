"""That something still goes on: a quiet line on stderr, on a terminal only, gone at the end."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentctl.cli.durations import spoken
from agentctl.cli.terminal import is_terminal, show_passing

__all__ = ["waiting"]

QUIET_SECONDS = 1.0
"""What takes no longer is not worth a line."""


@asynccontextmanager
async def waiting(what: str, *, most: float | None = None) -> AsyncIterator[None]:
    """Show what is waited for, and since when, while the block lasts.

    Args:
        what: `waiting for the answer`.
        most: seconds that it lasts at most, when that is known.
    """
    if not is_terminal(sys.stderr):
        yield
        return
    import asyncio

    showing = asyncio.create_task(_show(what, most))
    try:
        yield
    finally:
        showing.cancel()
        show_passing("")


async def _show(what: str, most: float | None) -> None:
    import asyncio
    import time

    began = time.monotonic()
    end = "" if most is None else f" of {spoken(most)}"
    while True:
        await asyncio.sleep(QUIET_SECONDS)
        show_passing(f"{what}, {spoken(time.monotonic() - began)}{end}")
