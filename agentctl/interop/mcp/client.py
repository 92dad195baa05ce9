"""The client of a call, as the servers for both protocols describe it, and its progress."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from agentctl.interface.requests import StreamEvent
from agentctl.interop.mcp.questions import Question
from agentctl.records.events import TEXT_KINDS, EventKind, parse_event
from agentctl.server.answers import Call

Result = dict[str, Any]
"""The result of a call as JSON of the protocol."""

INTERVAL_SECONDS = 1.0
"""Least number of seconds between two notifications of a call."""

IDLE_SECONDS = 5.0
"""Seconds without an event after which the last message is sent again."""

Report = Callable[[int, str], Awaitable[None]]
"""Sends a notification: its number, from 1, and its message."""


@dataclass(frozen=True, slots=True)
class CallingClient:
    """The parts of a call other than its arguments, and the ways to reach its client."""

    disconnected: asyncio.Event
    """Set when the client of the HTTP request has disconnected."""

    detaches: bool
    """True if the run continues after that."""

    run_id: str | None = None
    """The id that the run of the call gets; None for any."""

    report: Report | None = None
    """Sends a notification of progress; None if the client wants none."""

    ask: Callable[[Question], Awaitable[None]] | None = None
    """Sends a question, whose answer is another request; None if the client takes no questions
    while it waits."""

    waits: Callable[[], AbstractContextManager[None]] = nullcontext
    """Counts the call among the streams that the caller follows, while it waits for an answer."""

    takes_questions: bool = False
    """True if the client takes questions as the result of the call."""

    state: str | None = None
    """The `requestState` of a repeated call, the id of a run that waits; None for a new call."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    """The answers to the questions of that run, by the ids of the questions."""

    takes_links: bool = True
    """True if its protocol has links to resources, since 2025-06-18."""


ListTools = Callable[[Call], Awaitable[list[dict[str, Any]]]]
"""Returns the tools of the caller of a request, as JSON of the protocol."""

CallTool = Callable[[Call, str, dict[str, Any] | None, CallingClient], Awaitable[dict[str, Any]]]
"""Calls a tool by its name, with its arguments; returns the result as JSON of the protocol."""


class NoSuchTool(Exception):
    """The caller of a tool may not use it, or it does not exist."""

    TEXT = "There is no such tool"


def build_result(
    text: str, ids: dict[str, object] | None = None, *, failed: bool = False
) -> Result:
    """Return the result of a call as JSON of the protocol; models read its text."""
    result: Result = {"content": [{"type": "text", "text": text}], "isError": failed}
    if ids is not None:
        result["structuredContent"] = {"content": text, **ids}
    return result


class CallProgress:
    """The progress of the run of one call: at most one notification a second, each with a message.

    Args:
        report: None if the client wants no notifications.
    """

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self._text = "started"
        self._changed = asyncio.Event()
        self._characters = 0

    def read(self, stream_event: StreamEvent, run_id: str) -> None:
        """Note an event of the run, or of a member."""
        if self._report is None:
            return

        event = parse_event(stream_event.name, stream_event.data)
        is_own = event.run_id == run_id
        match event.kind:
            case EventKind.TOOL_CALL_STARTED:
                self.note(f"calls {event.tool.get('tool_name')}")
            case EventKind.STARTED if not is_own:
                self.note(f"{event.component_name} started")
            case EventKind.COMPLETED if not is_own:
                self.note(f"{event.component_name} completed")
            case EventKind.STEP_STARTED | EventKind.PROGRESS:
                self.note(event.describe() or "")
            case EventKind.CONTINUED:
                self.note("continued")
            case kind if kind in TEXT_KINDS:
                self._characters += len(event.text)
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
        # The first message is sent at once.
        self._changed.set()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), IDLE_SECONDS)
            self._changed.clear()

            number += 1
            await report(number, self._text)
            await asyncio.sleep(INTERVAL_SECONDS)
