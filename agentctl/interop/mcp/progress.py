"""The progress of a call: at most one notification a second, each with a message."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from agentctl.interface.requests import StreamEvent
from agentctl.records.events import TEXT_KINDS, EventKind, parse_event

INTERVAL_SECONDS = 1.0
"""Least number of seconds between two notifications of a call."""

IDLE_SECONDS = 5.0
"""Seconds without an event after which the last message is sent again."""

Report = Callable[[int, str], Awaitable[None]]
"""Sends a notification: its number, from 1, and its message."""


class CallProgress:
    """The progress of the run of one call; `report` is None if the client wants none."""

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self._text = "started"
        self._changed = asyncio.Event()
        self._characters = 0

    def read(self, event: StreamEvent, run_id: str) -> None:
        """Note an event of the run, or of a member."""
        if self._report is None:
            return
        read = parse_event(event.name, event.data)
        own = read.run_id == run_id
        match read.kind:
            case EventKind.TOOL_CALL_STARTED:
                self.note(f"calls {read.tool.get('tool_name')}")
            case EventKind.STARTED if not own:
                self.note(f"{read.component_name} started")
            case EventKind.COMPLETED if not own:
                self.note(f"{read.component_name} completed")
            case EventKind.STEP_STARTED | EventKind.PROGRESS:
                self.note(read.describe() or "")
            case EventKind.CONTINUED:
                self.note("continued")
            case kind if kind in TEXT_KINDS:
                self._characters += len(read.text)
                self.note(f"{self._characters} characters")

    def note(self, text: str) -> None:
        """Set the message of the next notification."""
        self._text = text
        self._changed.set()

    @contextlib.asynccontextmanager
    async def reporting(self) -> AsyncIterator[None]:
        """Send notifications while the block is active."""
        if self._report is None:
            yield
            return
        task = asyncio.create_task(self._send_all(self._report), name="mcp progress")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _send_all(self, report: Report) -> None:
        number = 0
        self._changed.set()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), IDLE_SECONDS)
            self._changed.clear()
            number += 1
            await report(number, self._text)
            await asyncio.sleep(INTERVAL_SECONDS)
