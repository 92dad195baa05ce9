"""Work that cannot be interrupted, kept away from the event loop.

Each call gets a daemon thread of its own: a tool that hangs then holds up neither the calls of
other runs, as it would in a pool, nor the end of the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Call `function` in a new thread; raises what it raises.

    When the caller is cancelled the thread runs on and what it returns is dropped.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (context.run(function), None)
        except BaseException as error:
            outcome = (None, error)
        _deliver(loop, answer, outcome)

    threading.Thread(target=work, name="agentctl-tool", daemon=True).start()
    value, error = await answer
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # no error: it is what the function returned


def _deliver(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], outcome: Any) -> None:
    """Hand over the outcome, unless nobody waits any more or the loop is gone."""

    def settle() -> None:
        if not answer.done():
            answer.set_result(outcome)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop was closed while the tool ran: there is nobody left to tell.
        return
