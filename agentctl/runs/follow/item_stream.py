"""The stream of a run as changes of its items (docs/contract.md "Items")."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import orjson

from agentctl.interface.requests import StreamEvent
from agentctl.records.events import parse_event
from agentctl.records.run_reader import RunChange, RunReader

EVENT_NAME = "ItemsChanged"


async def stream_items(
    portions: AsyncGenerator[list[StreamEvent]], after: int | None
) -> AsyncGenerator[list[StreamEvent]]:
    """Yield an event with the changes that each event of a run causes.

    Args:
        portions: the events of the run from the first one on, which this generator closes.
        after: the number of the last event that the client has; None for none.
    """
    reader = RunReader()
    async with contextlib.aclosing(portions):
        async for portion in portions:
            changed: list[StreamEvent] = []
            for event in portion:
                changes = reader.apply(parse_event(event.name, event.data, event.seq))
                if changes and (after is None or event.seq > after):
                    data = {"changes": [_build_change(reader, change) for change in changes]}
                    changed.append(StreamEvent(event.seq, EVENT_NAME, orjson.dumps(data)))
            if changed:
                yield changed


def _build_change(reader: RunReader, change: RunChange) -> dict[str, Any]:
    run = reader.runs[change.run_id]
    built: dict[str, Any] = {"run_id": change.run_id}
    if change.position is None:
        return {**built, "run": run.record}
    built["position"] = change.position
    if change.added is not None:
        return {**built, "added": change.added}
    return {**built, "item": run.items[change.position]}
