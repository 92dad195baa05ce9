"""What the stored events tell of a run whose worker is gone.

The events of a run and of the runs under it are one stream, stored under the root's id; each event
says whose it is. All deltas, joined, are the content; a workflow's is the output of its last step.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson

from agentctl.runtime.transcript import CANCELLED_RESULT
from agentctl.store import events, runs
from agentctl.store.database import Steps, unit
from agentctl.store.runs import RunRow

__all__ = ["Salvage", "root_of", "salvage"]


class Salvage:
    """What is known of one run.

    Attributes:
        component_name: as its events have it; None when there are none.
        tools: entries of its tool calls, as in a transcript.
    """

    def __init__(self, run: RunRow) -> None:
        self._run = run
        self._content: list[str] = []
        self._tools: dict[str, dict[str, Any]] = {}
        self.component_name: str | None = None

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def tools(self) -> list[dict[str, Any]]:
        return list(self._tools.values())

    def close_open_calls(self) -> None:
        """Settle the calls without a result: nobody works on them any more."""
        for entry in self._tools.values():
            if entry.get("tool_call_error") is None:
                entry.update(tool_call_error=True, result=CANCELLED_RESULT)

    def add(self, lines: str) -> None:
        """Take from a stored batch what is of this run; what cannot be read is passed over."""
        # Not splitlines: JSON may hold other ends of lines than its own.
        for line in lines.split("\n"):
            name, _, data = line.partition(" ")
            if self._run.run_id in data:
                with suppress(ValueError, TypeError, AttributeError, KeyError):
                    self._take(name, orjson.loads(data))

    def _take(self, name: str, event: dict[str, Any]) -> None:
        if event.get("run_id") != self._run.run_id:
            return
        self.component_name = event.get(f"{self._run.component_type}_name", self.component_name)
        if name.endswith("Content"):
            self._content.append(str(event["content"]))
        elif name == "StepCompleted":
            self._content = [str(event["content"])]
        elif "tool" in event:
            tool = event["tool"]
            self._tools[tool["tool_call_id"]] = tool


@unit
def salvage(run: RunRow, root_id: str) -> Steps[Salvage]:
    """Read what is stored of a run in the stream of its root, batch by batch."""
    found = Salvage(run)
    seq = -1
    while batches := (yield from events.after(root_id, seq)):
        for batch in batches:
            found.add(batch.events)
        seq = batches[-1].last_seq
    found.close_open_calls()
    return found


@unit
def root_of(run: RunRow) -> Steps[str]:
    """The id of the run that no other run asked for, above this one or itself."""
    run_id, above = run.run_id, run.parent_run_id
    while above is not None:
        parent = yield from runs.state(above)
        if parent is None:
            break
        run_id, above = parent.run_id, parent.parent_run_id
    return run_id
