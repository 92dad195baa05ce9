"""Replay: the results and the spans of a run according to its stored events.

The events of a run and of its members' runs are one stream, stored under the id of the root run;
each event names its run. The joined deltas are the content; the content of a workflow is the output
of its last step. Calls of models have no events, so they have no spans here
(docs/decisions/0053).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson

from agentctl.records.kinds import KINDS
from agentctl.records.times import parse_rfc3339
from agentctl.runtime.spans import Spans, SpanStatus
from agentctl.runtime.transcript import CANCELLED_RESULT
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import events, run_reads
from agentctl.store.repositories.run_rows import RunRow

_SUFFIXES: dict[str, SpanStatus] = {
    "Completed": "completed", "Cancelled": "cancelled", "Error": "failed"
}  # fmt: skip

_ENDS = {
    f"{names.event_prefix}{suffix}": status
    for names in KINDS.values()
    for suffix, status in _SUFFIXES.items()
}
"""The last events of runs, with the status of the span of such a run."""


class ReplayedRun:
    """The results of one run according to its stored events.

    Attributes:
        component_name: name of the component in the events; None without events.
        spans: the times of its tool calls, members and steps.
    """

    def __init__(self, run: RunRow) -> None:
        self._run = run
        self._content: list[str] = []
        self._tools: dict[str, dict[str, Any]] = {}
        self.component_name: str | None = None
        self.spans = Spans()

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The entries of the tool calls, in the form of `Transcript.tools`."""
        return list(self._tools.values())

    def close_open_calls(self) -> None:
        """Add a result to tool calls that have none: no process executes them any more."""
        for entry in self._tools.values():
            if entry.get("tool_call_error") is None:
                entry.update(tool_call_error=True, result=CANCELLED_RESULT)

    def add(self, lines: str, *, content: bool = True) -> None:
        """Apply the events of this run from a stored batch; skip unreadable events.

        Args:
            content: False leaves out the events with text, most of a stream.
        """
        # Not `splitlines`: JSON text may contain line separators other than the line feed.
        for line in lines.split("\n"):
            name, _, data = line.partition(" ")
            if self._run.run_id in data and (content or not name.endswith(("Content", "Delta"))):
                with suppress(ValueError, TypeError, AttributeError, KeyError):
                    self._apply(name, orjson.loads(data))

    def _apply(self, name: str, event: dict[str, Any]) -> None:
        if event.get("parent_run_id") == self._run.run_id:
            self._apply_member(name, event)
        if event.get("run_id") != self._run.run_id:
            return
        self.component_name = event.get(f"{self._run.component_type}_name", self.component_name)
        if name.endswith("Content"):
            self._content.append(str(event["content"]))
        elif name == "StepStarted":
            self.spans.start_step(event["step_index"], event["step_name"], _get_time(event))
        elif name == "StepCompleted":
            self._content = [str(event["content"])]
            self.spans.end(f"step-{event['step_index']}", "completed", _get_time(event))
        elif "tool" in event:
            tool = event["tool"]
            call_id = tool["tool_call_id"]
            is_new = call_id not in self._tools
            self._tools[call_id] = tool
            if is_new:
                self.spans.start_tool_call(call_id, tool["tool_name"], _get_time(event))
            if tool["tool_call_error"] is not None:
                status: SpanStatus = "failed" if tool["tool_call_error"] else "completed"
                self.spans.end(call_id, status, _get_time(event))

    def _apply_member(self, name: str, event: dict[str, Any]) -> None:
        member_run_id = event["run_id"]
        if not self.spans.has(member_run_id):
            component_id = next(
                event[names.id_field] for names in KINDS.values() if names.id_field in event
            )
            parent = self._find_delegation(component_id)
            self.spans.start_member(member_run_id, component_id, _get_time(event), parent)
        if name in _ENDS:
            self.spans.end(member_run_id, _ENDS[name], _get_time(event))

    def _find_delegation(self, component_id: str) -> str | None:
        for span in self.spans.find_open_without_member():
            arguments = self._tools.get(span.id, {}).get("tool_args") or {}
            if span.kind == "step" or arguments.get("member_id") == component_id:
                return span.id
        return None


def _get_time(event: dict[str, Any]) -> int:
    return parse_rfc3339(event["at"]) if "at" in event else int(event["created_at"]) * 1_000_000


@unit
def replay_stored_events(run: RunRow, root_id: str, *, content: bool = True) -> Steps[ReplayedRun]:
    """Read the results of a run from the stored stream of its root, batch by batch.

    Args:
        content: False leaves out the text of the run and of its members.
    """
    replayed = ReplayedRun(run)
    seq = -1
    while batches := (yield from events.list_after(root_id, seq)):
        for batch in batches:
            replayed.add(batch.events, content=content)
        seq = batches[-1].last_seq
    return replayed


@unit
def read_stored_spans(run: RunRow) -> Steps[list[dict[str, Any]]]:
    """Read the spans of a live run that another process executes.

    They are those of its stored events: none for a run whose events are not stored.
    """
    root_id = yield from find_root_id(run)
    replayed = yield from replay_stored_events(run, root_id, content=False)
    return replayed.spans.records()


@unit
def find_root_id(run: RunRow) -> Steps[str]:
    """Return the id of the topmost ancestor of a run, which may be the run itself."""
    run_id, parent_id = run.run_id, run.parent_run_id
    while parent_id is not None:
        parent = yield from run_reads.get_state(parent_id)
        if parent is None:
            break
        run_id, parent_id = parent.run_id, parent.parent_run_id
    return run_id
