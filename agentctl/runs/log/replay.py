"""Replay: the results and the spans of a run according to its stored events.

The events of a run and of its members' runs are one stream, stored under the id of the root run;
each event names its run. The joined deltas are the content; the content of a workflow is the output
of its last step. Calls of models have no events, so they have no spans here
(docs/decisions/0053).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agentctl.errors import InvalidResponse
from agentctl.records.events import Event, EventKind, find_event_kind, parse_event
from agentctl.records.kinds import find_component
from agentctl.records.run_reader import RunReader
from agentctl.records.times import parse_rfc3339, whole_seconds
from agentctl.runs.log.event_rows import decode_events
from agentctl.runtime.transcript.history import CANCELLED_RESULT
from agentctl.runtime.transcript.spans import SPAN_STATUSES, Spans
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import events, run_reads
from agentctl.store.repositories.run_rows import RunRow, RunState


class ReplayedRun:
    """The results of one run according to its stored events.

    Attributes:
        component_name: name of the component in the events; None without events.
        spans: the times of its tool calls, members and steps.
        transcript: its answers and the results of its calls, as messages.
    """

    def __init__(self, run: RunRow) -> None:
        self._run = run
        self._content: list[str] = []
        self._tools: dict[str, dict[str, Any]] = {}
        self.component_name: str | None = None
        self.spans = Spans()
        self.transcript = Transcript()

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

    def apply(self, event: Event) -> None:
        """Apply an event of the run or of one of its members."""
        if event.data.get("parent_run_id") == self._run.run_id:
            self._apply_member(event)
        if event.run_id != self._run.run_id:
            return
        data = event.data
        self.component_name = data.get(f"{self._run.component_type}_name", self.component_name)
        match event.kind:
            case EventKind.CONTENT:
                self._content.append(str(data["content"]))
                self._add_text(str(data["content"]))
            case EventKind.STEP_STARTED:
                self.spans.start_step(data["step_index"], data["step_name"], _get_time(event))
            case EventKind.STEP_COMPLETED:
                self._content = [str(data["content"])]
                self.spans.end(f"step-{data['step_index']}", "completed", _get_time(event))
            case EventKind.TOOL_CALL_STARTED | EventKind.TOOL_CALL_COMPLETED:
                self._apply_tool(dict(data["tool"]), _get_time(event))

    def _apply_tool(self, tool: dict[str, Any], at: int) -> None:
        call_id = tool["tool_call_id"]
        is_new = call_id not in self._tools
        self._tools[call_id] = tool
        if is_new:
            self.spans.start_tool_call(call_id, tool["tool_name"], at)
            self.transcript.request_call(
                {"id": call_id, "name": tool["tool_name"], "arguments": tool["tool_args"]}
            )
        if tool["tool_call_error"] is not None:
            self.spans.end(call_id, "failed" if tool["tool_call_error"] else "completed", at)
            self.transcript.add_result(call_id, str(tool["result"]), whole_seconds(at))

    def _add_text(self, text: str) -> None:
        if not self.transcript.is_answering:
            self.transcript.begin_answer()
            text = text.lstrip("\n")
        self.transcript.extend_answer(text)

    def _apply_member(self, event: Event) -> None:
        if not self.spans.has(event.run_id):
            component = find_component(event.data)
            assert component is not None
            parent = self._find_delegation(component[1])
            self.spans.start_member(event.run_id, component[1], _get_time(event), parent)
        if event.end_status is not None:
            self.spans.end(event.run_id, SPAN_STATUSES[event.end_status], _get_time(event))

    def _find_delegation(self, component_id: str) -> str | None:
        for span in self.spans.find_open_without_member():
            arguments = self._tools.get(span.id, {}).get("tool_args") or {}
            if span.kind == "step" or arguments.get("member_id") == component_id:
                return span.id
        return None


def _get_time(event: Event) -> int:
    return parse_rfc3339(event.at) if event.at else int(event.data["created_at"]) * 1_000_000


@unit
def _replay(
    root_id: str, apply: Callable[[Event], object], *, run_id: str = "", texts: bool = True
) -> Steps[None]:
    """Apply the stored events of a root run, batch by batch. Unreadable events are skipped.

    Args:
        run_id: leaves out the events that do not name this run.
        texts: False leaves out the pieces of texts.
    """
    named, seq = run_id.encode(), -1
    while batches := (yield from events.list_after(root_id, seq)):
        for batch in batches:
            for event in decode_events(batch, texts=texts):
                if find_event_kind(event.name) is not None and named in event.data:
                    with suppress(InvalidResponse, ValueError, TypeError, KeyError):
                        apply(parse_event(event.name, event.data))
        seq = batches[-1].last_seq


@unit
def replay_stored_events(run: RunRow, root_id: str, *, content: bool = True) -> Steps[ReplayedRun]:
    """Read the results of a run from the stored stream of its root.

    Args:
        content: False leaves out the text of the run and of its members, most of a stream.
    """
    replayed = ReplayedRun(run)
    yield from _replay(root_id, replayed.apply, run_id=run.run_id, texts=content)
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
def read_stored_items(root_id: str) -> Steps[RunReader]:
    """Read the items of a live run and of the runs below it from its stored events."""
    reader = RunReader()
    yield from _replay(root_id, reader.apply)
    return reader


@unit
def find_root_id(run: RunRow | RunState) -> Steps[str]:
    """Return the id of the topmost ancestor of a run, which may be the run itself."""
    run_id, parent_id = run.run_id, run.parent_run_id
    while parent_id is not None:
        parent = yield from run_reads.get_state(parent_id)
        if parent is None:
            break
        run_id, parent_id = parent.run_id, parent.parent_run_id
    return run_id
