"""The items of a run while it works, from the events of its stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

from agentctl.records.approvals import ApprovalSummary
from agentctl.records.events import Event, EventKind
from agentctl.records.items import (
    DELEGATIONS,
    Item,
    RunItem,
    RunPhaseSummary,
    TextItem,
    ToolCallItem,
    build_call,
    build_compacted,
    build_message,
    build_notice,
    build_question,
    build_saved,
)
from agentctl.records.kinds import KINDS, Record, find_component
from agentctl.records.phase import describe_run


class RunChange(NamedTuple):
    """A change of a run that an event caused."""

    run_id: str

    position: int | None
    """Position of the new or changed item; None if the fields of the run have changed."""

    added: str | None = None
    """The text that was added to the item; None if the item is new or was replaced."""


@dataclass(slots=True)
class RunSoFar:
    """A run as its events have described it so far."""

    record: dict[str, Any]
    """The known fields of its summary."""

    _items: list[Item] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    """The parts of the last text, joined once: a long text is not copied for each event."""

    @property
    def items(self) -> list[Item]:
        """The items, in the order in which they happened."""
        if self._text:
            cast(TextItem, self._items[-1])["text"] = "".join(self._text)
            self._text = [self._items[-1]["text"]]  # type: ignore[typeddict-item]
        return self._items

    def add(self, item: Item) -> RunChange:
        """Add an item at the end."""
        items = self.items
        self._text = []
        items.append(item)
        return RunChange(self.record["run_id"], len(items) - 1)

    def replace(self, position: int, item: Item) -> RunChange:
        """Replace an item; the next text is not added to it."""
        if position == len(self._items) - 1:
            self._text = []
        self._items[position] = item
        return RunChange(self.record["run_id"], position)

    def add_text(self, type: Literal["text", "thinking"], text: str) -> RunChange:
        """Add a text to the last item if it has the same type, else as a new item."""
        if self._text and self._items[-1]["type"] == type:
            self._text.append(text)
            return RunChange(self.record["run_id"], len(self._items) - 1, text)
        change = self.add({"type": type, "text": text})
        self._text = [text]
        return change

    def set_approval(self, approval: ApprovalSummary) -> RunChange:
        """Set the approval of a call that has no result; without a call add the question."""
        position = self.find(type="tool_call", tool_call_id=approval["tool_call_id"])
        question = build_question(approval, self.record["status"])

        if position is None:
            return self.add(question)

        call = cast(ToolCallItem, self.items[position])
        if call["status"] in ("done", "failed") and call["result"] is not None:
            return self.replace(position, {**call, "approval": approval})
        return self.replace(position, {**call, "status": question["status"], "approval": approval})

    def find(self, **members: object) -> int | None:
        """Return the position of the newest item with these members, None if there is none."""
        for position in range(len(self._items) - 1, -1, -1):
            item = cast(Record, self._items[position])
            if all(name in item and item[name] == value for name, value in members.items()):
                return position
        return None


class RunReader:
    """Reads the events of a stream as the items of its runs."""

    runs: dict[str, RunSoFar]
    """The run of the stream and the runs below it, by id."""

    def __init__(self) -> None:
        self.runs = {}

    def apply(self, event: Event) -> list[RunChange]:
        """Apply an event, and return the changes that it causes."""
        if event.kind is None or not event.run_id:
            return []

        changes: list[RunChange] = []
        run = self.runs.get(event.run_id)
        if run is None:
            run = RunSoFar(_start_record(event))
            self.runs[event.run_id] = run
            changes += [RunChange(event.run_id, None), *self._place_run(run)]

        match event.kind:
            case EventKind.STARTED:
                changes += _begin_run(run, event)
            case EventKind.CONTENT:
                changes.append(run.add_text("text", event.text))
            case EventKind.THINKING:
                changes.append(run.add_text("thinking", event.text))
            case EventKind.COMPACTED:
                changes.append(_add_compacted(run, event))
            case EventKind.FILE_SAVED:
                changes.append(run.add(build_saved(event.data.get("file") or {})))
            case EventKind.MESSAGE_DELIVERED:
                changes += _add_message(run, event)
            case EventKind.TOOL_CALL_STARTED:
                changes.append(_start_call(run, event))
            case EventKind.TOOL_CALL_COMPLETED:
                changes += _complete_call(run, event)
            case EventKind.STEP_STARTED:
                changes.append(_start_step(run, event))
            case EventKind.PROGRESS:
                changes.append(_set_progress(run, event))
            case EventKind.PAUSED:
                changes += self._pause_run(run, event)
            case EventKind.CONTINUED:
                changes += _continue_run(run, event)
            case _ if event.end_status is not None:
                changes += self._end_run(run, event)

        return changes

    def _place_run(self, run: RunSoFar) -> list[RunChange]:
        """Give a run of a member or step its place among the items of its parent."""
        parent = self.runs.get(run.record.get("parent_run_id") or "")
        if parent is None:
            return []

        record = run.record
        item: RunItem = {
            "type": "member",
            "run_id": record["run_id"],
            "name": "",
            "task": None,
            "run": cast(RunPhaseSummary, record),
        }

        step_position = parent.find(type="step", run_id=None)
        if step_position is not None:
            name = cast(RunItem, parent.items[step_position])["name"]
            return [parent.replace(step_position, {**item, "type": "step", "name": name})]

        component = find_component(record)
        if component is None:
            return [parent.add(item)]

        for position, call in enumerate(parent.items):
            if call["type"] != "tool_call" or call["tool_name"] not in DELEGATIONS:
                continue
            arguments = call["tool_args"]
            if isinstance(arguments, Mapping) and arguments.get("member_id") == component[1]:
                return [parent.replace(position, {**item, "task": arguments.get("task")})]
        return [parent.add(item)]

    def _pause_run(self, run: RunSoFar, event: Event) -> list[RunChange]:
        approvals = [
            cast(ApprovalSummary, {"created_at": event.at, "decided_at": None, **approval})
            for approval in event.data.get("approvals") or ()
        ]
        run.record |= {"status": "PAUSED", "paused_at": event.at, "approvals": approvals}
        run.record["phase"] = describe_run(run.record)
        changes = [run.set_approval(approval) for approval in approvals]
        return [RunChange(event.run_id, None), *changes, *self._find_place(run)]

    def _find_place(self, run: RunSoFar) -> list[RunChange]:
        """Return the change of the item that has the run in its parent, if there is one."""
        parent = self.runs.get(run.record.get("parent_run_id") or "")
        if parent is None:
            return []
        position = parent.find(run_id=run.record["run_id"])
        if position is None:
            return []
        return [RunChange(parent.record["run_id"], position)]

    def _end_run(self, run: RunSoFar, event: Event) -> list[RunChange]:
        data = event.data
        run_id = event.run_id
        run.record |= {"status": event.end_status, "finished_at": event.at}
        run.record |= {name: data[name] for name in ("error", "metrics") if data.get(name)}

        # No event has the time at which the work has stopped.
        run.record["phase"] = describe_run({**run.record, "stopped_at": event.at})

        changes = [RunChange(run_id, None)]
        for position, item in enumerate(run.items):
            if item["type"] != "tool_call" or item["status"] not in ("running", "waiting"):
                continue
            is_answered = _is_question(item) and event.end_status == "COMPLETED"
            status: Literal["done", "cancelled"] = "done" if is_answered else "cancelled"
            changes.append(run.replace(position, {**item, "status": status}))

        if data.get("content") and run.find(type="text") is None:
            changes.append(run.add({"type": "text", "text": str(data["content"])}))
        return [*changes, *self._find_place(run)]


def _start_record(event: Event) -> dict[str, Any]:
    fields = (
        "run_id",
        "session_id",
        "parent_run_id",
        "origin_run_id",
        "origin_kind",
        "origin_at",
        *(names.id_field for names in KINDS.values()),
    )
    record = {name: event.data[name] for name in fields if event.data.get(name)}

    if event.kind is EventKind.QUEUED:
        queued = {name: event.data.get(name) for name in ("queued_at", "queue_position")}
        record |= {"status": "PENDING", **queued}
    else:
        record |= {"status": "RUNNING", "started_at": event.at}

    return {**record, "phase": describe_run(record)}


def _begin_run(run: RunSoFar, event: Event) -> list[RunChange]:
    """Begin a run that waited in the queue."""
    if run.record["status"] != "PENDING":
        return []
    run.record |= {"status": "RUNNING", "started_at": event.at, "queue_position": None}
    run.record["phase"] = describe_run(run.record)
    return [RunChange(event.run_id, None), *_add_notice(run, event)]


def _add_notice(run: RunSoFar, event: Event) -> list[RunChange]:
    """Add a notice if the event names a change of the version."""
    version_change = event.data.get("version_change")
    if version_change is None:
        return []
    return [run.add(build_notice(version_change))]


def _is_question(item: ToolCallItem) -> bool:
    """Return True for a question whose call has no separate events."""
    approval = item.get("approval")
    return approval is not None and item["started_at"] == approval["created_at"]


def _continue_run(run: RunSoFar, event: Event) -> list[RunChange]:
    """Begin a leg.

    A leg that is repeated after a crash starts from `content`: later text is void.
    """
    run.record |= {"status": "RUNNING", "approvals": []}
    run.record["phase"] = describe_run(run.record)
    changes = [RunChange(event.run_id, None)]

    content = str(event.data.get("content") or "")
    kept_length = 0

    for position, item in enumerate(run.items):
        if item["type"] == "text":
            text = item["text"][: len(content) - kept_length]
            kept_length += len(text)
            if text != item["text"]:
                changes.append(run.replace(position, {**item, "text": text}))
        elif item["type"] == "tool_call" and item["status"] == "running":
            changes.append(run.replace(position, {**item, "status": "cancelled"}))

    if content and not kept_length:
        # The stream has no events of earlier legs.
        changes.append(run.add({"type": "text", "text": content}))

    for approval in event.data.get("approvals") or ():
        changes.append(run.set_approval(cast(ApprovalSummary, approval)))

    return changes + _add_notice(run, event)


def _add_message(run: RunSoFar, event: Event) -> list[RunChange]:
    """Add a message that was sent to the run; a leg after a lost one may publish it again."""
    message_id = str(event.data.get("message_id"))
    if run.find(type="prompt", message_id=message_id) is not None:
        return []
    return [run.add(build_message(message_id, str(event.data.get("content"))))]


def _add_compacted(run: RunSoFar, event: Event) -> RunChange:
    """Add a note. It replaces the note of a refused call, which is repeated with fewer messages."""
    note = build_compacted(event.data)
    last_position = len(run.items) - 1
    if last_position < 0 or run.items[last_position]["type"] != "compacted":
        return run.add(note)

    # Damaged data is in the first message of the run, the rest in the answer of a call.
    if _names_damage(note) != _names_damage(run.items[last_position]):
        return run.add(note)
    return run.replace(last_position, note)


def _names_damage(note: Mapping[str, Any]) -> bool:
    return any(
        str(omission["kind"]).startswith("damaged_") for omission in note.get("omissions") or ()
    )


def _start_step(run: RunSoFar, event: Event) -> RunChange:
    step: RunItem = {
        "type": "step",
        "run_id": None,
        "name": str(event.data.get("step_name")),
        "task": None,
        "run": None,
    }
    return run.add(step)


def _set_progress(run: RunSoFar, event: Event) -> RunChange:
    run.record["progress"] = {name: event.data.get(name) for name in ("text", "fraction")}
    return RunChange(event.run_id, None)


def _start_call(run: RunSoFar, event: Event) -> RunChange:
    """Add a call; a call that has waited for a decision stays in its place."""
    started_call = build_call(event.call_id, event.tool, event.at, None, "RUNNING")
    position = run.find(type="tool_call", tool_call_id=event.call_id)
    if position is None:
        return run.add(started_call)
    return run.replace(position, _keep_approval(started_call, run.items[position]))


def _keep_approval(call: ToolCallItem, earlier_item: Item) -> ToolCallItem:
    approval = cast(ToolCallItem, earlier_item).get("approval")
    if approval is None:
        return call
    return {**call, "approval": approval}


def _complete_call(run: RunSoFar, event: Event) -> list[RunChange]:
    position = run.find(type="tool_call", tool_call_id=event.call_id)
    if position is None and event.tool.get("tool_name") in DELEGATIONS:
        # The run of the member has taken the place of the call.
        return []
    if position is None:
        return [run.add(build_call(event.call_id, event.tool, None, event.at, "RUNNING"))]

    started_call = run.items[position]
    started_at = cast(ToolCallItem, started_call)["started_at"]
    ended_call = build_call(event.call_id, event.tool, started_at, event.at, "RUNNING")
    return [run.replace(position, _keep_approval(ended_call, started_call))]
