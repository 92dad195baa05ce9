"""Running a command so that a signal ends it in order: what it opened is closed again."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import typer

__all__ = ["run_until_done"]


def run_until_done(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end. Ctrl-C, SIGTERM and SIGHUP cancel it first.

    Raises:
        KeyboardInterrupt: it was Ctrl-C.
        typer.Exit: it was SIGTERM or SIGHUP; the code is 128 and the number of the signal.
    """
    import asyncio
    import signal

    received: list[int] = []

    async def interruptible() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                loop.add_signal_handler(number, stop, number)
        await work

    try:
        asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise typer.Exit(128 + received[0] if received else 1) from None
