"""Blocking calls of agentctl itself, each in a new daemon thread.

They do not use the executor of the event loop: tools use it as well, and a tool can occupy all of
its threads for ever, which would prevent the close of the databases.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from agentctl.work.event_loop import retrieve_exception

P = ParamSpec("P")
T = TypeVar("T")


async def call_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function in a new thread; return its result, or raise its exception.

    A cancel abandons the call: the thread continues, and its outcome is dropped.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)  # type: ignore[arg-type]  # without an error the result

    def call() -> None:
        value = None
        error = None
        try:
            value = function(*args, **kwargs)
        except BaseException as failure:
            error = failure
        # The event loop may be closed: no one needs the outcome then.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, value, error)

    threading.Thread(target=call, name="agentctl blocking call", daemon=True).start()
    return await outcome


async def complete_in_thread(
    function: Callable[[], T], *, on_cancel: Callable[[], object] | None = None
) -> T:
    """Do the same as `call_in_thread`, but a cancel waits for the end of the call.

    For a function that changes files, or has them open: until it ends, they are not free.

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
