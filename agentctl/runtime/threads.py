"""Work that cannot be interrupted, kept away from the event loop.

Each call gets a daemon thread of its own: a tool that hangs then holds up neither the calls of
other runs, as it would in a pool, nor the end of the process. How many hanging ones a process may
gather is bounded, though: each keeps its stack and whatever it has open.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from agentctl.runtime.leftovers import Leftovers

__all__ = ["MOST_LEFT", "TooManyLeft", "in_thread", "left_now"]

_log = logging.getLogger("agentctl.runtime")

T = TypeVar("T")

MOST_LEFT = 64
"""When so many threads that nobody waits for any more are at work in a process, no call is made."""

_LOG_SECONDS = 60.0
"""How often the log says that there are too many."""


class TooManyLeft(Exception):
    """`MOST_LEFT` threads were left behind and are still at work, so none was started."""


async def in_thread(function: Callable[[], T], name: str, leftovers: Leftovers) -> T:
    """Call `function` in a new thread; raises what it raises.

    When the caller is cancelled the thread runs on, noted in `leftovers` by this name, and what
    it returns is dropped.

    Raises:
        TooManyLeft: the function was not called.
    """
    _census.check(name)
    call = _Call(function)
    threading.Thread(target=call.work, name=f"tool {name}", daemon=True).start()
    try:
        value, error = await asyncio.shield(call.answer)
    except asyncio.CancelledError:
        call.leave()
        leftovers.add(call.answer, name)
        raise
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # no error: it is what the function returned


class _Call(Generic[T]):
    """A function in a thread.

    Attributes:
        answer: what it returned and what it raised; never done when its loop was closed before.
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._left = False
        self.answer: asyncio.Future[tuple[T | None, BaseException | None]]
        self.answer = self._loop.create_future()

    def work(self) -> None:
        """What the thread does."""
        try:
            outcome: tuple[Any, BaseException | None]
            outcome = (self._context.run(self._function), None)
        except BaseException as error:
            outcome = (None, error)
        with _census.lock:
            self._ended = True
            _census.left -= self._left
        try:
            self._loop.call_soon_threadsafe(self.answer.set_result, outcome)
        except RuntimeError:
            # The loop was closed while the tool ran: there is nobody left to tell.
            return

    def leave(self) -> None:
        """Nobody waits for it any more."""
        with _census.lock:
            self._left = not self._ended
            _census.left += self._left


class _Census:
    """How many threads of this process were left behind and have not ended."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.left = 0
        self._logged = -_LOG_SECONDS

    def check(self, name: str) -> None:
        """Raises TooManyLeft when there may be no more."""
        if self.left < MOST_LEFT:
            return
        now = time.monotonic()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            _log.error(
                "the tool %s was not called: %d calls of tools did not end when they were told to "
                "and are still at work in this process",
                name,
                self.left,
            )
        raise TooManyLeft


_census = _Census()


def left_now() -> int:
    """How many threads of this process nobody waits for any more, and are still at work."""
    return _census.left
