"""The items of a run: what happened in it, in order, for everything that draws a run.

Texts, thinking, tool calls with their results, runs of members, steps and background work. They are
built from the record of a run (`build_items`), or from its events while it works
(`agentctl.records.run_reader`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NotRequired, cast

from typing_extensions import TypedDict

from agentctl.records.approvals import ApprovalSummary
from agentctl.records.events import OmissionKind, describe_compacted, describe_file
from agentctl.records.files import RunFileRecord, is_saved
from agentctl.records.kinds import Record, find_component
from agentctl.records.phase import PhaseRecord
from agentctl.records.runs import RunSummary, RunSummaryPage, SpanRecord, VersionChange
from agentctl.records.sessions import PageMeta
from agentctl.records.times import Timestamp

DELEGATE = "delegate_task_to_member"
"""The tool with which the leader of a team gives a member a task, to continue with its answer."""

ROUTE = "route_to_member"
"""The tool with which the leader of a team lets a member answer in its place."""

DELEGATIONS = (DELEGATE, ROUTE)
"""The tools of a team that start the run of a member, which takes the place of the call."""

LIVE_STATUSES = ("PENDING", "RUNNING")

CallStatus = Literal["running", "waiting", "done", "failed", "cancelled"]

CANCELLED_RESULT = "cancelled"
"""Result of a tool call that was open when its run was stopped."""

SUMMARY_VIEWS = ("summary", "phase")
"""The views for which the large columns of a run are not read."""

WHOLE_FIELDS = (
    "input", "input_object", "files", "output", "metadata", "session_state", "trace_id", "spans",
    "member_runs",
)  # fmt: skip
"""The fields of a run record that its items have in addition to the fields of its summary."""


class OmissionRecord(TypedDict):
    """A part of the messages that a model call does not show whole (docs/models.md)."""

    kind: OmissionKind
    count: int
    first: str
    last: str
    size: int


class TextItem(TypedDict):
    """A text of the component, its thinking, or a message that it received besides the input.

    `role` is the role of a message: `system` or `user`; `message_id` is the id of a message that
    was sent to the run while it worked. `compacted` is a line about the messages that do not fit
    into the context window of the model, `omissions` names them. A `notice` is a fact about the
    run, such as that it has saved `file`.
    """

    type: Literal["text", "thinking", "prompt", "compacted", "notice"]
    text: str
    role: NotRequired[str]
    message_id: NotRequired[str]
    omissions: NotRequired[list[OmissionRecord]]
    file: NotRequired[RunFileRecord]
    truncated: NotRequired[dict[Literal["characters"], int]]


class ToolCallItem(TypedDict):
    """A tool call, or a question to a person.

    `waiting` means that the run is paused, `cancelled` that it ended before the call did. `result`
    is null while the tool works. `approval` is the newest one about the call; in the events of a
    run it has fewer fields.
    """

    type: Literal["tool_call"]
    tool_call_id: str
    tool_name: str
    tool_args: Any
    status: CallStatus
    result: Any
    started_at: Timestamp | None
    finished_at: Timestamp | None
    approval: NotRequired[ApprovalSummary]
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

    input_object: dict[str, Any] | None
    files: list[RunFileRecord]
    output: Any
    metadata: dict[str, Any] | None
    session_state: dict[str, Any] | None
    trace_id: str | None
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


class Child(NamedTuple):
    """The run of a member, a step or background work: its summary and its whole input."""

    run: Record
    input: str


def build_items(run: Record, children: Sequence[Child] = (), cut: int | None = None) -> list[Item]:
    """Return the items of a run from its record.

    Args:
        run: the whole record.
        cut: number of characters after which messages and results of tools are cut; None not to
            cut them.
    """
    builder = _ItemBuilder(run, children)
    placed = list(builder.build_placed())
    rest = list(builder.take_rest())

    # Members of a broadcast and steps work before the model of the run, background work after it.
    rest_before = [item for item in rest if item["type"] != "background"]
    items = [*rest_before, *placed, *rest[len(rest_before) :]]

    for change in run.get("version_changes") or ():
        items.insert(_find_place(items, change["at"]), build_notice(change))
    for file in reversed(run.get("files") or ()):
        if is_saved(file):
            items.insert(_find_place(items, file["created_at"]), build_saved(file))

    damaged_fields = run.get("damaged")
    if damaged_fields:
        names = ", ".join(map(str, damaged_fields))
        items.insert(0, {"type": "notice", "text": f"damaged in the database: {names}"})

    content = str(run.get("content") or "")
    has_item = any(item["type"] == "text" and item["text"] == content for item in items)
    items = [cut_item(item, cut) for item in items]

    # Most agents join their answers with an empty line; a generator joins its pieces with nothing.
    if has_item or not content or _strip(content) == _strip(_join_answers(run)):
        return items
    return [*items, {"type": "text", "text": content}]


def build_notice(change: VersionChange) -> TextItem:
    """Build the item of a change of the version of the component."""
    text = f"The component changed from version {change['before']} to {change['after']}"
    return {"type": "notice", "text": text}


def build_saved(file: Record) -> TextItem:
    """Build the item of a file that the run has saved."""
    file_record = cast(RunFileRecord, dict(file))
    return {"type": "notice", "text": describe_file(file), "file": file_record}


def build_message(message_id: str, text: str) -> TextItem:
    """Build the item of a message that was sent to the run while it works."""
    return {"type": "prompt", "role": "user", "text": text, "message_id": message_id}


def _find_place(items: Sequence[Item], at: str) -> int:
    """Return the position after the last call that began before a time."""
    place = 0
    for number, item in enumerate(items, 1):
        if item["type"] == "tool_call" and item["started_at"] and item["started_at"] < at:
            place = number
    return place


def _join_answers(run: Record) -> str:
    """Return all answers of a run, including answers of its members."""
    answers = (message for message in _list_own_messages(run) if message.get("role") == "assistant")
    return "".join(str(message.get("content") or "") for message in answers)


def _strip(text: str) -> str:
    """Return a text without white space."""
    return "".join(text.split())


def _list_own_messages(run: Record) -> Iterator[Record]:
    """Yield the messages of a run without the messages of the run that it repeats."""
    return (message for message in run.get("messages") or () if "origin_run_id" not in message)


def cut_item(item: Item, cut: int | None) -> Item:
    """Return an item, with a long message or result cut and its whole length in `truncated`."""
    name = "result" if item["type"] == "tool_call" else "text"
    text = cast(Record, item).get(name)
    if cut is None or item["type"] == "thinking" or not isinstance(text, str) or len(text) <= cut:
        return item
    return cast(Item, {**item, name: text[:cut], "truncated": {"characters": len(text)}})


def build_compacted(compacted: Record) -> TextItem:
    """Build the item of the messages that a model call does not show whole."""
    omissions = compacted.get("omissions") or []
    return {"type": "compacted", "text": describe_compacted(compacted), "omissions": omissions}


def build_question(approval: ApprovalSummary, run_status: str) -> ToolCallItem:
    """Build the item of a question of a run that has no call in its messages."""
    # An approved call was not necessarily made: `execution` is the fact about it.
    status_of_execution: dict[object, CallStatus] = {
        "done": "done",
        "failed": "failed",
        "executing": "running",
    }
    status = status_of_execution.get(cast(Record, approval).get("execution"))

    if status is not None:
        pass
    elif approval["status"] in ("rejected", "expired"):
        status = "failed"
    elif approval["kind"] == "input" and approval["status"] == "answered":
        status = "done"
    elif run_status == "PAUSED":
        status = "waiting"
    elif run_status in LIVE_STATUSES:
        status = "running"
    else:
        status = "cancelled"

    tool = {
        "tool_name": approval["tool_name"],
        "tool_args": cast(Record, approval).get("arguments"),
    }
    asked_at = approval["created_at"]
    decided_at = approval["decided_at"]
    item = build_call(approval["tool_call_id"], tool, asked_at, decided_at, run_status)
    return {**item, "status": status, "approval": approval}


def build_call(
    call_id: str, tool: Record, started_at: Any, finished_at: Any, run_status: str
) -> ToolCallItem:
    """Build the item of a tool call.

    Args:
        tool: the entry of the call in `tools` of a run, or in an event.
        started_at, finished_at: times, None if they are not known.
    """
    status: CallStatus = "cancelled"
    result = tool.get("result")
    # The call of a stopped run has not failed: it was cut off, and has this result for its model.
    was_stopped = run_status == "CANCELLED" and result == CANCELLED_RESULT
    if result is not None and not was_stopped:
        status = "failed" if tool.get("tool_call_error") else "done"
    elif run_status in LIVE_STATUSES:
        status = "done" if finished_at else "running"
    elif run_status == "PAUSED":
        status = "waiting"

    return {
        "type": "tool_call",
        "tool_call_id": call_id,
        "tool_name": str(tool.get("tool_name")),
        "tool_args": tool.get("tool_args"),
        "status": status,
        "result": result,
        "started_at": started_at,
        "finished_at": finished_at,
    }


class _ItemBuilder:
    """The items of a run. A run that it started takes the place of the call that started it."""

    def __init__(self, run: Record, children: Sequence[Child]) -> None:
        self._run = run
        self._status = str(run.get("status"))
        # The runs that have no place yet, oldest first.
        self._rest = sorted(children, key=lambda child: str(child.run.get("created_at")))

        # By the id of the call: its entry in `tools` of the run, and its span.
        self._tools = {str(tool.get("tool_call_id")): tool for tool in run.get("tools") or ()}
        spans: Sequence[Record] = run.get("spans") or ()
        self._call_spans = {
            str(span.get("id")): span for span in spans if span.get("kind") == "tool"
        }
        self._member_spans = [span for span in spans if span.get("kind") == "member"]

        # The names of steps by the ids of their runs.
        self._steps = {
            str(span.get("member_run_id")): str(span["name"])
            for span in spans
            if span.get("kind") == "step" and span.get("name")
        }

        # The newest approval of each call, without the approvals of its members.
        self._approvals: dict[str, ApprovalSummary] = {
            str(approval.get("tool_call_id")): approval
            for approval in run.get("approvals") or ()
            if approval.get("run_id") in (None, run.get("run_id"))
        }

    def build_placed(self) -> Iterator[Item]:
        """Yield the items in the order of the messages, then the calls that no message has."""
        if self._run.get("reasoning_content"):
            yield {"type": "thinking", "text": self._run["reasoning_content"]}

        placed_calls: set[str] = set()
        has_prompt = False
        for message in _list_own_messages(self._run):
            role = message.get("role")
            content = str(message.get("content") or "")
            calls = message.get("tool_calls") or ()
            member_run_id = message.get("member_run_id")
            is_of_member = member_run_id is not None

            if is_of_member:
                # The calls of a member are in its own run. Its text is part of the answer.
                yield from self._take_run(str(member_run_id))

            compacted = message.get("compacted")
            if compacted:
                yield build_compacted(compacted)

            if role == "assistant" and content:
                yield {"type": "text", "text": content}

            if is_of_member:
                pass
            elif role == "assistant":
                for call in calls:
                    yield from self._place_message_call(call)
            elif "message_id" in message:
                yield build_message(message["message_id"], content)
            elif role == "system" or (role == "user" and has_prompt):
                # The first message of the user is the input of the run, and no item.
                yield {"type": "prompt", "role": str(role), "text": content}

            if is_of_member or role == "assistant":
                placed_calls |= {str(call.get("id")) for call in calls}
            has_prompt = has_prompt or role == "user"

        yield from self._build_unplaced(placed_calls)

    def _build_unplaced(self, placed_calls: set[str]) -> Iterator[Item]:
        """Yield the calls and questions of the run that no message of it has."""
        for call_id, tool in self._tools.items():
            if call_id not in placed_calls:
                yield self._place_call(call_id, tool)

        known_calls = placed_calls | self._tools.keys()
        for call_id, span in self._call_spans.items():
            if call_id not in known_calls and self._status == "RUNNING":
                yield self._place_call(call_id, {"tool_name": span.get("name"), "tool_args": None})

        known_calls |= self._call_spans.keys()
        for call_id, approval in self._approvals.items():
            if call_id not in known_calls:
                yield build_question(approval, self._status)

    def _place_message_call(self, call: Record) -> Iterator[Item]:
        call_id = str(call.get("id"))
        unrecorded_tool = {"tool_name": call.get("name"), "tool_args": call.get("arguments")}
        yield self._place_call(call_id, self._tools.get(call_id) or unrecorded_tool)

        # The members that the call of a tool has started.
        for span in self._member_spans:
            if span.get("parent") == call_id:
                yield from self._take_run(str(span.get("member_run_id")))

    def _place_call(self, call_id: str, tool: Record) -> ToolCallItem | RunItem:
        span = self._call_spans.get(call_id) or {}
        if tool.get("tool_name") in DELEGATIONS:
            member = self._take_member(tool, span)
            if member is not None:
                return member

        item = build_call(
            call_id, tool, span.get("started_at"), span.get("finished_at"), self._status
        )
        approval = self._approvals.get(call_id)
        if approval is None:
            return item
        return {**item, "approval": approval}

    def _take_member(self, tool: Record, span: Record) -> RunItem | None:
        """Return the member that a delegation started, None if none is left."""
        for child in self._rest:
            if child.run.get("run_id") == span.get("member_run_id"):
                return self._build_item(child)

        # Without a span, its arguments have to tell: the member, and its task.
        arguments = tool.get("tool_args")
        if not isinstance(arguments, Mapping):
            arguments = {}

        runs_of_member = list[Child]()
        for child in self._rest:
            component = find_component(child.run)
            component_id = component[1] if component is not None else ""
            if not child.run.get("purpose") and component_id == arguments.get("member_id"):
                runs_of_member.append(child)
        if not runs_of_member:
            return None

        task = arguments.get("task")
        for child in runs_of_member:
            if task is None or child.input == task:
                return self._build_item(child)
        return self._build_item(runs_of_member[0])

    def _take_run(self, run_id: str) -> Iterator[RunItem]:
        """Yield the run with an id, unless it has its place."""
        for child in self._rest.copy():
            if child.run.get("run_id") == run_id:
                yield self._build_item(child)

    def take_rest(self) -> Iterator[RunItem]:
        """Yield the runs without a call: runs of broadcasts and of steps, background work last."""
        for child in sorted(self._rest, key=lambda child: bool(child.run.get("purpose"))):
            yield self._build_item(child)

    def _build_item(self, child: Child) -> RunItem:
        """Build the item of a run, which has its place from now on."""
        self._rest = [other for other in self._rest if other is not child]

        run_id = str(child.run.get("run_id"))
        purpose = child.run.get("purpose")
        is_determined = (
            self._run.get("workflow_id") or purpose or child.input == self._run.get("input")
        )

        kind: Literal["member", "step", "background"] = "member"
        if purpose:
            kind = "background"
        elif run_id in self._steps:
            kind = "step"

        return {
            "type": kind,
            "run_id": run_id,
            "name": str(purpose or self._steps.get(run_id, "")),
            "task": None if is_determined else child.input,
            "run": cast(RunPhaseSummary, child.run),
        }
