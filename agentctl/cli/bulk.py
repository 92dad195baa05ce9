"""Several things in one command: the failure of one does not keep the others from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agentctl.cli.edge import report
from agentctl.errors import AgentctlError

__all__ = ["PartFailed", "do_all", "raise_failures", "successes"]

S = TypeVar("S")
T = TypeVar("T")


class PartFailed(AgentctlError):
    """Some of several things could not be done; each has been reported."""

    error_code = "PART_FAILED"


async def do_all(
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


def raise_failures(ids: Sequence[str], results: Sequence[object]) -> None:
    """Tell of every failure.

    Raises:
        AgentctlError: the failure itself when there was only one thing to do; else `PartFailed`,
            after each failure was reported on stderr.
    """
    failures = [each for each in results if isinstance(each, Exception)]
    if failures and len(ids) == 1:
        raise failures[0]
    for failure in failures:
        report(failure)
    if failures:
        raise PartFailed(f"{len(failures)} of {len(ids)} failed")
