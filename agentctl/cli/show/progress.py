"""That something still goes on: a quiet line on stderr, on a terminal only, gone at the end.

Several things in one command: the failure of one does not keep the others from it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from agentctl.cli.durations import format_span
from agentctl.cli.io import current_io
from agentctl.cli.report import report_error
from agentctl.cli.show.terminal import show_status_line
from agentctl.errors import AgentctlError

__all__ = ["Counter", "PartFailed", "report_failures", "run_all", "showing_progress", "successes"]

DELAY_SECONDS = 1.0
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
async def showing_progress(
    what: str | Counter, *, most: float | None = None
) -> AsyncIterator[None]:
    """Show what is waited for, and since when, while the block lasts.

    Args:
        what: `waiting for the answer`, or what counts how far it is.
        most: seconds that it lasts at most, when that is known.
    """
    if not current_io().err_is_terminal:
        yield
        return
    import asyncio

    showing = asyncio.create_task(_show(what, most))
    try:
        yield
    finally:
        showing.cancel()
        show_status_line("")


async def _show(what: str | Counter, most: float | None) -> None:
    import asyncio
    import time

    began = time.monotonic()
    end = "" if most is None else f" of {format_span(most)}"
    while True:
        await asyncio.sleep(DELAY_SECONDS)
        show_status_line(f"{what}, {format_span(time.monotonic() - began)}{end}")


S = TypeVar("S")
T = TypeVar("T")


class PartFailed(AgentctlError):
    """Some of several things could not be done; each has been reported."""

    error_code = "PART_FAILED"


async def run_all(
    things: Sequence[S], act: Callable[[S], Awaitable[T]], *, at_once: int | None = None
) -> list[T | BaseException]:
    """What `act` returned or raised for everything, in the order given.

    Args:
        at_once: how many are under way at the same time at most; None: all of them.
    """
    import asyncio

    room = asyncio.Semaphore(at_once or max(len(things), 1))

    async def in_turn(thing: S) -> T:
        async with room:
            return await act(thing)

    return await asyncio.gather(*map(in_turn, things), return_exceptions=True)


def successes(results: Sequence[T | BaseException]) -> list[T]:
    """The results that are none of the failures."""
    return [each for each in results if not isinstance(each, BaseException)]


def report_failures(ids: Sequence[str], results: Sequence[object]) -> None:
    """Tell of every failure.

    Raises:
        AgentctlError: the failure itself when there was only one thing to do; else `PartFailed`,
            after each failure was reported on stderr.
    """
    failures = [each for each in results if isinstance(each, Exception)]
    if failures and len(ids) == 1:
        raise failures[0]
    for failure in failures:
        report_error(failure)
    if failures:
        raise PartFailed(f"{len(failures)} of {len(ids)} failed")
