"""That something still goes on: a quiet line on stderr, on a terminal only, gone at the end."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agentctl.cli.durations import spoken
from agentctl.cli.terminal import is_terminal, show_passing

__all__ = ["Counter", "waiting"]

QUIET_SECONDS = 1.0
"""What takes no longer is not worth a line."""

BAR = 20
"""Columns of a progress bar."""


@dataclass(slots=True)
class Counter:
    """How much of something is done: `[#####...............] 25 of 100 runs`.

    Attributes:
        what: `runs have stopped`.
        total: how many there are; None when nobody knows: then there is no bar.
        done: how many of them are done.
    """

    what: str
    total: int | None = None
    done: int = 0

    def show(self, what: str, done: int, total: int | None) -> None:
        """Go on to something else, or further in it."""
        self.what, self.done, self.total = what, done, total or None

    def __str__(self) -> str:
        if self.total is None:
            return f"{self.done} {self.what}"
        filled = BAR * min(self.done, self.total) // max(self.total, 1)
        bar = "#" * filled + "." * (BAR - filled)
        return f"[{bar}] {self.done} of {self.total} {self.what}"


@asynccontextmanager
async def waiting(what: str | Counter, *, most: float | None = None) -> AsyncIterator[None]:
    """Show what is waited for, and since when, while the block lasts.

    Args:
        what: `waiting for the answer`, or what counts how far it is.
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


async def _show(what: str | Counter, most: float | None) -> None:
    import asyncio
    import time

    began = time.monotonic()
    end = "" if most is None else f" of {spoken(most)}"
    while True:
        await asyncio.sleep(QUIET_SECONDS)
        show_passing(f"{what}, {spoken(time.monotonic() - began)}{end}")
