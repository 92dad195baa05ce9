"""A task that enters and exits a context manager on behalf of other tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from agentctl.work.event_loop import retrieve_exception
from agentctl.work.unstopped import abandon_task

_log = logging.getLogger("agentctl.runtime")

CLOSE_SECONDS = 5.0
"""Maximum time to exit the context manager; after that its task is abandoned."""


class OwnerTask:
    """The owner of a context manager. Some libraries demand that one task enters and exits it.

    Args:
        build: returns the context manager.
    """

    def __init__(self, build: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._build = build
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._entered: asyncio.Future[None]

    async def open(self) -> None:
        """Enter the context manager, unless it is entered. Raises what entering raises."""
        if self._task is None or self._task.done():
            self._closing.clear()
            self._entered = asyncio.get_running_loop().create_future()
            self._entered.add_done_callback(retrieve_exception)
            self._task = asyncio.create_task(self._own(self._entered))
        await asyncio.shield(self._entered)

    async def close(self) -> None:
        """Exit the context manager if it was entered, and wait at most `CLOSE_SECONDS`."""
        task, self._task = self._task, None
        if task is None:
            return
        self._closing.set()
        _, pending = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
        if pending:
            _log.warning("what an agent opened did not close within %g seconds", CLOSE_SECONDS)
            abandon_task(task)

    async def _own(self, entered: asyncio.Future[None]) -> None:
        try:
            async with self._build():
                if not entered.done():
                    entered.set_result(None)
                await self._closing.wait()
        except BaseException as error:
            if entered.done():
                _log.warning("what an agent opened did not close", exc_info=error)
            else:
                entered.set_exception(error)
