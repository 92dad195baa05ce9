"""The line at a terminal about a run without events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentctl.cli.show import event_lines
from agentctl.interface.requests import StreamEvent


def test_silence_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    @asynccontextmanager
    async def record(text: str) -> AsyncIterator[None]:
        shown.append(text.removeprefix("clerk: waiting for "))
        yield

    monkeypatch.setattr(event_lines, "showing_progress", record)
    names = (
        "RunQueued",
        "RunStarted",
        "ToolCallStarted",
        "ToolCallCompleted",
        "RunContent",
        "RunCompleted",
    )
    tool = {"tool_call_id": "1", "tool_name": "nap"}
    data = json.dumps({"tool": tool, "queue_position": 2}).encode()

    async def stream() -> AsyncIterator[StreamEvent]:
        for number, name in enumerate(names):
            yield StreamEvent(number, name, data)

    async def read() -> list[str]:
        events = event_lines.with_activity(stream(), "clerk", lambda: "RunContent" in seen)
        async for event in events:
            seen.append(event.name)
        return seen

    seen: list[str] = []
    assert asyncio.run(read()) == list(names)
    assert shown == [
        "the first token",
        "its turn, place 2 in the queue of its session",
        "the first token",
        "tool nap",
        "the next event",
    ]
