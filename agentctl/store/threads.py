"""Blocking calls of agentctl itself, each in a new daemon thread.

They do not use the executor of the event loop: tools use it as well, and a tool can occupy all of
its threads for ever, which would prevent the close of the databases.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from agentctl.work.event_loop import retrieve_exception

P = ParamSpec("P")
T = TypeVar("T")


class Closable(Protocol):
    """Something that has to be closed, as a file."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


async def call_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function in a new thread; return its result, or raise its exception.

    A cancel abandons the call: the thread continues, and its outcome is dropped.
    """
    return await _call_in_thread(partial(function, *args, **kwargs), drop=lambda value: None)


async def open_in_thread(function: Callable[[], C]) -> C:
    """Call a blocking function that opens something in a new thread; return what it opened.

    A cancel abandons the call. If the thread opens something after that, it is closed.
    """
    return await _call_in_thread(function, drop=lambda opened: opened.close())


async def _call_in_thread(function: Callable[[], T], *, drop: Callable[[T], None]) -> T:
    """Call a blocking function in a new thread.

    Args:
        drop: called with a result that nothing waits for any more, in any thread.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def deliver(value: T) -> None:
        if outcome.done():
            drop(value)
        else:
            outcome.set_result(value)

    def fail(error: BaseException) -> None:
        if not outcome.done():
            outcome.set_exception(error)

    def call() -> None:
        try:
            value = function()
        except BaseException as error:
            # The event loop may be closed: no one needs the outcome then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(fail, error)
            return

        try:
            loop.call_soon_threadsafe(deliver, value)
        except RuntimeError:
            drop(value)

    threading.Thread(target=call, name="agentctl blocking call", daemon=True).start()

    try:
        return await outcome
    except asyncio.CancelledError:
        # A cancel may come between the result and the next step of the task that waits for it.
        if outcome.done() and not outcome.cancelled() and outcome.exception() is None:
            drop(outcome.result())
        raise


async def complete_in_thread(
    function: Callable[[], T], *, on_cancel: Callable[[], object] | None = None
) -> T:
    """Call a blocking function in a new thread. A cancel waits for the end of the call.

    Use it for functions that change files or have them open: the files are in use until the
    function ends.

    Args:
        on_cancel: asks the function to end soon.
    """
    call = asyncio.ensure_future(call_in_thread(function))
    call.add_done_callback(retrieve_exception)
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
        await asyncio.wait([call])
        raise
