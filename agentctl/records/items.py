"""The items of a run: what happened in it, in order, for everything that draws a run.

Texts, thinking, tool calls with their results, runs of members, steps and background work. They are
built from the record of a run (`build_items`), or from its events while it works (`RunReader`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NotRequired, cast

from typing_extensions import TypedDict

from agentctl.records.events import Event, EventKind
from agentctl.records.kinds import KINDS, Record, find_component
from agentctl.records.phase import PhaseRecord, describe_run
from agentctl.records.runs import RunSummary, RunSummaryPage, SpanRecord
from agentctl.records.sessions import PageMeta
from agentctl.records.times import Timestamp

DELEGATE, ROUTE = DELEGATIONS = ("delegate_task_to_member", "route_to_member")
"""The tools of a team that start the run of a member, which takes the place of the call."""

LIVE_STATUSES = ("PENDING", "RUNNING")


class TextItem(TypedDict):
    """A text of the component, its thinking, or a message that it received besides the input.

    `role` is that of a message: `system` or `user`.
    """

    type: Literal["text", "thinking", "prompt"]
    text: str
    role: NotRequired[str]
    truncated: NotRequired[dict[Literal["characters"], int]]


class ToolCallItem(TypedDict):
    """A tool call. `cancelled` means that the run ended before the call did.

    `result` is null while the tool works.
    """

    type: Literal["tool_call"]
    tool_call_id: str
    tool_name: str
    tool_args: Any
    status: Literal["running", "done", "failed", "cancelled"]
    result: Any
    started_at: Timestamp | None
    finished_at: Timestamp | None
    truncated: NotRequired[dict[Literal["characters"], int]]


class RunPhaseSummary(RunSummary):
    """The summary of a run with its phase, as `view=phase` returns it."""

    phase: PhaseRecord


class RunItem(TypedDict):
    """The run of a member, a step or background work, in the place where it began.

    `name` is the name of the step or the purpose of background work, else empty. `task` is the
    input, null if the parent determines it. `run` is null until the run of a step begins.
    """

    type: Literal["member", "step", "background"]
    run_id: str | None
    name: str
    task: str | None
    run: RunPhaseSummary | None


Item = TextItem | ToolCallItem | RunItem


class RunItemsRecord(RunPhaseSummary):
    """A run as its items, as `view=items` returns it; `input` is whole."""

    output: Any
    metadata: dict[str, Any] | None
    session_state: dict[str, Any] | None
    spans: list[SpanRecord]
    member_runs: list[str]
    items: list[Item]


class RunViewPage(TypedDict):
    """A page of runs, across sessions, with `view=phase` or `view=items`."""

    data: list[RunPhaseSummary] | list[RunItemsRecord]
    meta: PageMeta


RunViews = RunSummary | RunPhaseSummary | RunItemsRecord
"""A run in a view other than `full`."""

RunViewPages = RunSummaryPage | RunViewPage

SUMMARY_VIEWS = ("summary", "phase")
"""The views for which the large columns of a run are not read."""

WHOLE_FIELDS = ("input", "output", "metadata", "session_state", "spans", "member_runs")
"""The fields of a run record that its items have besides those of its summary."""


class Child(NamedTuple):
    """The run of a member, a step or background work: its summary and its whole input."""

    run: Record
    input: str


def build_items(run: Record, children: Sequence[Child] = (), cut: int | None = None) -> list[Item]:
    """Return the items of a run from its record.

    Args:
        run: the whole record.
        children: the runs that it started.
        cut: characters after which messages and results of tools are cut; None: not at all.
    """
    below = _Children(run, children)
    placed = list(_build_items(run, below))
    rest = list(below.take_rest())
    # Members of a broadcast and steps work before the model of the run, background work after it.
    first = [item for item in rest if item["type"] != "background"]
    items = [*first, *placed, *rest[len(first) :]]
    content = str(run.get("content") or "")
    is_said = any(item["type"] == "text" and item["text"] == content for item in items)
    items = [cut_item(item, cut) for item in items]
    return items if is_said or not content else [*items, {"type": "text", "text": content}]


def cut_item(item: Item, cut: int | None) -> Item:
    """Return an item, with a long message or result cut and its whole length in `truncated`."""
    name = "result" if item["type"] == "tool_call" else "text"
    text = cast(Record, item).get(name)
    if cut is None or item["type"] == "thinking" or not isinstance(text, str) or len(text) <= cut:
        return item
    return cast(Item, {**item, name: text[:cut], "truncated": {"characters": len(text)}})


def _build_items(run: Record, children: _Children) -> Iterator[Item]:
    tools = {str(tool.get("tool_call_id")): tool for tool in run.get("tools") or []}
    spans = {
        str(span.get("id")): span for span in run.get("spans") or [] if span.get("kind") == "tool"
    }
    if run.get("reasoning_content"):
        yield {"type": "thinking", "text": run["reasoning_content"]}
    placed: set[str] = set()
    is_asked = False
    for message in run.get("messages") or []:
        role, content = message.get("role"), str(message.get("content") or "")
        if role == "assistant":
            if content:
                yield {"type": "text", "text": content}
            for call in message.get("tool_calls") or []:
                call_id = str(call.get("id"))
                placed.add(call_id)
                tool = tools.get(call_id) or {
                    "tool_name": call.get("name"),
                    "tool_args": call.get("arguments"),
                }
                yield _place_call(call_id, tool, spans.get(call_id) or {}, run, children)
        elif role == "system" or (role == "user" and is_asked):
            yield {"type": "prompt", "role": str(role), "text": content}
        is_asked = is_asked or role == "user"
    for call_id, tool in tools.items():
        if call_id not in placed:
            yield _place_call(call_id, tool, spans.get(call_id) or {}, run, children)
    for call_id, span in spans.items():
        if call_id not in placed and call_id not in tools and run.get("status") == "RUNNING":
            tool = {"tool_name": span.get("name"), "tool_args": None}
            yield _place_call(call_id, tool, span, run, children)


def _place_call(
    call_id: str, tool: Record, span: Record, run: Record, children: _Children
) -> ToolCallItem | RunItem:
    if tool.get("tool_name") in DELEGATIONS:
        member = children.take(tool, span)
        if member is not None:
            return member
    is_live = run.get("status") in LIVE_STATUSES
    return _build_call(call_id, tool, span.get("started_at"), span.get("finished_at"), is_live)


def _build_call(
    call_id: str, tool: Record, started_at: Any, finished_at: Any, is_live: bool
) -> ToolCallItem:
    status: Literal["running", "done", "failed", "cancelled"]
    if tool.get("result") is not None:
        status = "failed" if tool.get("tool_call_error") else "done"
    elif is_live:
        status = "done" if finished_at else "running"
    else:
        status = "cancelled"
    return {
        "type": "tool_call",
        "tool_call_id": call_id,
        "tool_name": str(tool.get("tool_name")),
        "tool_args": tool.get("tool_args"),
        "status": status,
        "result": tool.get("result"),
        "started_at": started_at,
        "finished_at": finished_at,
    }


class _Children:
    """The runs that a run started, each of which takes the place of the call that started it."""

    def __init__(self, parent: Record, children: Sequence[Child]) -> None:
        self._parent = parent
        self._rest = sorted(children, key=lambda child: str(child.run.get("created_at")))
        self._steps = {
            str(span.get("member_run_id")): str(span["name"])
            for span in parent.get("spans") or []
            if span.get("kind") == "step" and span.get("name")
        }

    def take(self, tool: Record, span: Record) -> RunItem | None:
        """Return the member that a delegation started, None if there is none left."""
        arguments = tool.get("tool_args")
        arguments = arguments if isinstance(arguments, Mapping) else {}
        for child in self._rest:
            if child.run.get("run_id") == span.get("member_run_id"):
                return self._build_item(child)
        member = arguments.get("member_id")
        own = [
            child
            for child in self._rest
            if not child.run.get("purpose") and (find_component(child.run) or ("", ""))[1] == member
        ]
        task = arguments.get("task")
        same = [child for child in own if task is None or child.input == task]
        return self._build_item((same or own)[0]) if own else None

    def take_rest(self) -> Iterator[RunItem]:
        """Yield the runs without a call: those of broadcasts and steps, background work last."""
        for child in sorted(self._rest, key=lambda child: bool(child.run.get("purpose"))):
            yield self._build_item(child)

    def _build_item(self, child: Child) -> RunItem:
        self._rest = [other for other in self._rest if other is not child]
        run_id, purpose = str(child.run.get("run_id")), child.run.get("purpose")
        is_determined = (
            self._parent.get("workflow_id") or purpose or child.input == self._parent.get("input")
        )
        kind: Literal["member", "step", "background"]
        kind = "background" if purpose else "step" if run_id in self._steps else "member"
        return {
            "type": kind,
            "run_id": run_id,
            "name": str(purpose or self._steps.get(run_id, "")),
            "task": None if is_determined else child.input,
            "run": cast(RunPhaseSummary, child.run),
        }


class Change(NamedTuple):
    """A change of a run that an event caused.

    Attributes:
        run_id: the run.
        position: that of the item that is new or has changed; None if the fields of the run
            have changed.
        added: the text that was added to the item; None if the item is new or was replaced.
    """

    run_id: str
    position: int | None
    added: str | None = None


@dataclass(slots=True)
class RunSoFar:
    """A run as its events have described it so far.

    Attributes:
        record: the fields of its summary that are known.
    """

    record: dict[str, Any]
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

    def add(self, item: Item) -> Change:
        """Add an item at the end."""
        items = self.items
        self._text = []
        items.append(item)
        return Change(self.record["run_id"], len(items) - 1)

    def replace(self, position: int, item: Item) -> Change:
        """Replace an item."""
        self._items[position] = item
        return Change(self.record["run_id"], position)

    def add_text(self, type: Literal["text", "thinking"], text: str) -> Change:
        """Add a text to the last item if it has the same type, else as a new item."""
        if self._text and self._items[-1]["type"] == type:
            self._text.append(text)
            return Change(self.record["run_id"], len(self._items) - 1, text)
        change = self.add({"type": type, "text": text})
        self._text = [text]
        return change

    def find(self, **members: object) -> int | None:
        """Return the position of the newest item with these members, None without one."""
        for index in range(len(self._items) - 1, -1, -1):
            item = self._items[index]
            if all(cast(Record, item).get(name, item) == value for name, value in members.items()):
                return index
        return None


class RunReader:
    """Reads the events of a stream as the items of its runs.

    Attributes:
        runs: the run of the stream and the runs below it, by id.
    """

    def __init__(self) -> None:
        self.runs: dict[str, RunSoFar] = {}

    def apply(self, event: Event) -> list[Change]:
        """Apply an event, and return the changes that it causes."""
        if event.kind is None or not event.run_id:
            return []
        changes: list[Change] = []
        run = self.runs.get(event.run_id)
        if run is None:
            run = self.runs[event.run_id] = RunSoFar(_start_record(event))
            changes += [Change(event.run_id, None), *self._place_run(run)]
        match event.kind:
            case EventKind.CONTENT:
                changes.append(run.add_text("text", event.text))
            case EventKind.THINKING:
                changes.append(run.add_text("thinking", event.text))
            case EventKind.TOOL_CALL_STARTED:
                changes.append(
                    run.add(_build_call(event.call_id, event.tool, event.at, None, True))
                )
            case EventKind.TOOL_CALL_COMPLETED:
                changes += _complete_call(run, event)
            case EventKind.STEP_STARTED:
                name = str(event.data.get("step_name"))
                step: RunItem = {
                    "type": "step", "run_id": None, "name": name, "task": None, "run": None
                }  # fmt: skip
                changes.append(run.add(step))
            case EventKind.PROGRESS:
                run.record["progress"] = {
                    name: event.data.get(name) for name in ("text", "fraction")
                }
                changes.append(Change(event.run_id, None))
            case _ if event.end_status is not None:
                changes += self._end_run(run, event)
        return changes

    def _place_run(self, run: RunSoFar) -> list[Change]:
        """Give a run of a member or step its place among the items of its parent."""
        parent = self.runs.get(run.record.get("parent_run_id") or "")
        if parent is None:
            return []
        record = run.record
        item: RunItem = {
            "type": "member", "run_id": record["run_id"], "name": "", "task": None,
            "run": cast(RunPhaseSummary, record),
        }  # fmt: skip
        step = parent.find(type="step", run_id=None)
        if step is not None:
            name = cast(RunItem, parent.items[step])["name"]
            return [parent.replace(step, {**item, "type": "step", "name": name})]
        component = find_component(record)
        for index, call in enumerate(parent.items):
            if call["type"] == "tool_call" and call["tool_name"] in DELEGATIONS:
                arguments = call["tool_args"] if isinstance(call["tool_args"], Mapping) else {}
                if component is not None and arguments.get("member_id") == component[1]:
                    return [parent.replace(index, {**item, "task": arguments.get("task")})]
        return [parent.add(item)]

    def _end_run(self, run: RunSoFar, event: Event) -> list[Change]:
        data, run_id = event.data, event.run_id
        run.record |= {"status": event.end_status, "finished_at": event.at}
        run.record |= {name: data[name] for name in ("error", "metrics") if data.get(name)}
        # No event has the time at which the work has stopped.
        run.record["phase"] = describe_run({**run.record, "stopped_at": event.at})
        changes = [Change(run_id, None)]
        for position, item in enumerate(run.items):
            if item["type"] == "tool_call" and item["status"] == "running":
                changes.append(run.replace(position, {**item, "status": "cancelled"}))
        if data.get("content") and run.find(type="text") is None:
            changes.append(run.add({"type": "text", "text": str(data["content"])}))
        parent = self.runs.get(run.record.get("parent_run_id") or "")
        index = None if parent is None else parent.find(run_id=run_id)
        if parent is not None and index is not None:
            changes.append(Change(parent.record["run_id"], index))
        return changes


def _start_record(event: Event) -> dict[str, Any]:
    fields = (
        "run_id",
        "session_id",
        "parent_run_id",
        *(names.id_field for names in KINDS.values()),
    )
    record = {name: event.data[name] for name in fields if event.data.get(name)}
    record |= {"status": "RUNNING", "started_at": event.at}
    return {**record, "phase": describe_run(record)}


def _complete_call(run: RunSoFar, event: Event) -> list[Change]:
    index = run.find(type="tool_call", tool_call_id=event.call_id)
    if index is None:
        if event.tool.get("tool_name") in DELEGATIONS:
            return []  # a member has its place
        return [run.add(_build_call(event.call_id, event.tool, None, event.at, True))]
    began = cast(ToolCallItem, run.items[index])["started_at"]
    return [run.replace(index, _build_call(event.call_id, event.tool, began, event.at, True))]
