"""The line at a terminal about a run without events: the work that it waits for."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING

from agentctl.cli.show.progress import showing_progress
from agentctl.records.events import EventKind, find_event_kind, parse_event

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
            kind = find_event_kind(event.name)
            if kind is EventKind.TOOL_CALL_STARTED:
                parsed = parse_event(event.name, event.data, event.seq)
                waits[parsed.call_id] = f"tool {parsed.tool.get('tool_name')}"
            elif kind is EventKind.TOOL_CALL_COMPLETED:
                waits.pop(parse_event(event.name, event.data, event.seq).call_id, None)
            spoke = spoke or kind in (EventKind.CONTENT, EventKind.TOOL_CALL_STARTED)
            yield event
