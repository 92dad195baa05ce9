"""The line at a terminal about a run without events: the work that it waits for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING

from agentctl.cli.show.answer import parse_event
from agentctl.cli.show.progress import showing_progress

if TYPE_CHECKING:
    from agentctl.requests import StreamEvent


async def with_activity(
    events: AsyncIterator[StreamEvent], component: str, in_line: Callable[[], bool]
) -> AsyncGenerator[StreamEvent]:
    """Yield events; while none arrives, show the component, what it waits for and how long.

    Args:
        events: the events of a run, which this generator closes.
        component: id of the component of the run.
        in_line: returns True while the line with the text has not ended: nothing is shown then.
    """
    waits: dict[str, str] = {}
    spoke = False
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        while True:
            subject = ", ".join(dict.fromkeys(waits.values()))
            subject = subject or ("the next event" if spoke else "the first token")
            text = f"{component}: waiting for {subject}"
            shown = contextlib.nullcontext() if in_line() else showing_progress(text)
            try:
                async with shown:
                    event = await anext(events)
            except StopAsyncIteration:
                return
            if event.name.endswith(("ToolCallStarted", "ToolCallCompleted")):
                tool = parse_event(event).get("tool") or {}
                call_id = str(tool.get("tool_call_id"))
                if event.name.endswith("Started"):
                    waits[call_id] = f"tool {tool.get('tool_name')}"
                else:
                    waits.pop(call_id, None)
            spoke = spoke or event.name.endswith(("Content", "ToolCallStarted"))
            yield event
