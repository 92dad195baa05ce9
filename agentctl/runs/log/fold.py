"""The fold of a run: its transcript and its state, built from what it has left behind.

What a run leaves are its checkpoint, the steps of its journal, and its events. The next leg and the
questions about lost calls fold the checkpoint and the steps (`StoredLog`). The end of a run that no
process executes (`fold_run`) does so, too, and folds the events (`EventFold`): they have what a run
without a journal did since its checkpoint.

A run that waits in the queue has a start checkpoint, and so has a durable run. Its attempt is 0: it
was written before the first leg. It has no transcript and no state.

The events of a run and of its members' runs are one stream, stored under the id of the root run;
each event names its run. The joined deltas are the content; the content of a workflow is the output
of its last step. Calls of models have no events, so they have no spans here
(docs/decisions/0053).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from agentctl.errors import InvalidResponse
from agentctl.records.events import Event, EventKind, find_event_kind, parse_event
from agentctl.records.files import is_saved
from agentctl.records.kinds import find_component
from agentctl.records.messages import parse_messages
from agentctl.records.run_reader import RunReader
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import RunRow, RunState
from agentctl.records.times import parse_rfc3339, whole_seconds
from agentctl.runs.log.event_rows import decode_events
from agentctl.runtime.files import build_files
from agentctl.runtime.pauses import ENDED, STEP_PREFIX, WaitingCall
from agentctl.runtime.tracing import SPAN_STATUSES
from agentctl.runtime.transcript.history import StateChanges, mark_kept
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Steps, Work, unit
from agentctl.store.repositories import approvals, events, run_reads, steps
from agentctl.store.repositories.approvals import Checkpoint
from agentctl.store.repositories.steps import StepRow
from agentctl.store.visibility import EVERYONE

_log = logging.getLogger("agentctl.runs")

START = "start"
"""The kind of a checkpoint that an admission stores."""

PAUSE = "pause"
"""The kind of a checkpoint that a pause stores."""


def write_start_checkpoint(spec: RunSpec, component_name: str, *, is_first: bool) -> Work[None]:
    """Store the checkpoint from which any server can begin a run.

    Args:
        component_name: the name in the events of the run.
        is_first: True if its session was created with the run.
    """
    body = {"spec": spec.to_json(), "component_name": component_name, "is_first": is_first}
    checkpoint = Checkpoint(spec.run_id, 0, START, orjson.dumps(body).decode())
    return approvals.keep_checkpoint(checkpoint)


class StoredLog:
    """The checkpoint of a run and the steps of its journal after it."""

    def __init__(self, checkpoint: Checkpoint, journal: Sequence[StepRow] = ()) -> None:
        self.checkpoint = checkpoint
        self.steps = journal

    @cached_property
    def body(self) -> Mapping[str, Any]:
        """The stored checkpoint, of the start or of a pause."""
        body: dict[str, Any] = orjson.loads(self.checkpoint.body)
        return body

    @property
    def is_durable(self) -> bool:
        """True if the run has a journal."""
        return bool(self.body["spec"].get("durable"))

    @property
    def spec(self) -> RunSpec:
        return RunSpec.from_json(self.body["spec"])

    def has_lost_leg(self, attempt: int) -> bool:
        """Return True if a worker that died had a leg after the checkpoint.

        It may have delivered events that were never stored.

        Args:
            attempt: the attempt of the run, of its next leg if it waits for one.
        """
        return attempt - self.checkpoint.attempt > 1

    def find_arguments(self) -> dict[str, Any]:
        """Return the arguments of the calls of a durable run by their ids."""
        state = self.body.get("state") or {}
        calls = [call for call in state.get("calls", ()) if isinstance(call, dict)]
        calls = [call for call in calls if "arguments" in call]
        for step in self.steps:
            body = orjson.loads(step.body or "{}")
            if step.call_id is not None and "arguments" in body:
                calls.append({"id": step.call_id, "arguments": body["arguments"]})
            for message in body.get("messages", ()):
                calls += message.get("tool_calls", ())
        return {call["id"]: call["arguments"] for call in calls}

    def fold(self, *, ends: bool = False) -> dict[str, Any]:
        """Return the checkpoint as it would be after the last step, see `fold_steps`."""
        return fold_steps(self.body, self.steps, ends=ends)


@unit
def load_log(run_id: str) -> Steps[StoredLog | None]:
    """Read the checkpoint and the journal of a run; None if it has no checkpoint."""
    checkpoint = yield from approvals.load_checkpoint(run_id)
    if checkpoint is None:
        return None
    return StoredLog(checkpoint, (yield from steps.list_of_run(run_id)))


def fold_steps(
    checkpoint: Mapping[str, Any], steps: Sequence[StepRow], *, ends: bool = False
) -> dict[str, Any]:
    """Return a checkpoint as it would be after the last step of a run.

    Its `state` is that of `runtime.components.agent`, with the results of the calls of the last
    answer in `known`; None if nothing has happened yet. Calls that have no end are made again;
    those of members that work are in `waiting`. The state of a workflow is that of
    `runtime.components.execute`.

    Args:
        checkpoint: the body of the stored checkpoint, of the start or of a pause.
        steps: all steps of the run in their order.
        ends: True if the run does not go on: its transcript gets the results of all calls.
    """
    present = {
        "transcript": Transcript().to_json(),
        "state": None,
        "is_first": False,
        "earlier_runs": None,
        "summary": None,
        "previous_instructions": None,
        "session_changes": None,
        **checkpoint,
    }
    new = [step for step in steps if step.seq >= checkpoint.get("next_step", 0)]
    transcript = Transcript.from_json(present["transcript"])
    state = present["state"]
    if checkpoint["spec"]["component_type"] == "workflow":
        state = _fold_workflow(transcript, state, new)
        present["session_changes"] = _find_changes(new)
        return {**present, "transcript": transcript.to_json(), "state": state}
    ended: list[StepRow] = []
    working: list[StepRow] = []
    logged: list[dict[str, Any]] = []
    for step in new:
        if step.kind == "answer":
            answer = orjson.loads(step.body or "{}")
            if "graph" in answer:
                # It has the whole transcript and state, of all steps before it.
                transcript = Transcript.from_json(answer["whole"])
                state = answer["graph"]
                later = (each for each in new if each.seq >= answer["after"])
                ended = [each for each in later if each.state in ENDED]
                break
            present |= answer.get("begin", {})
            state = _add_answer(transcript, state, answer, ended)
            ended = []
            working = []
        elif step.kind == "step":
            body = orjson.loads(step.body or "{}")
            present |= body.get("begin", {})
            logged.append(_read_logged(step.state, body))
        elif step.state in ENDED:
            ended.append(step)
        elif step.kind == "member":
            working.append(step)
    transcript.runner_kind = present.pop("runner_kind", transcript.runner_kind)
    if logged:
        before: Mapping[str, Any] = state or {"calls": [], "output": []}
        by_id = {call["call_id"]: call for call in [*before["calls"], *logged]}
        state = {**before, "calls": list(by_id.values())}
    else:
        if state is not None:
            state = _add_calls(transcript, state, ended, working, ends=ends)
        present["session_changes"] = _find_changes(new)
    return {**present, "transcript": transcript.to_json(), "state": state}


def _add_answer(
    transcript: Transcript,
    state: dict[str, Any] | None,
    answer: Mapping[str, Any],
    ended: Sequence[StepRow],
) -> dict[str, Any]:
    """Add an answer of the model, after the ended calls of the one before; return the state."""
    if "native" in answer:
        state = _extend_native(state, answer["native"])
    else:
        if state is not None:
            _close_calls(transcript, state, ended)
        state = _extend_state(state, answer)
    transcript.extend(answer["transcript"])
    return state


def _add_calls(
    transcript: Transcript,
    state: dict[str, Any],
    ended: Sequence[StepRow],
    working: Sequence[StepRow],
    *,
    ends: bool,
) -> dict[str, Any]:
    """Return the state with the calls of the last answer that have ended, and those that work."""
    if ended and ends:
        _close_calls(transcript, state, ended)
    elif ended:
        state = {**state, "known": {step.call_id: _read_result(step) for step in ended}}
    if "conversation" in state and working:
        state = {**state, "conversation": _add_working(state["conversation"], working)}
    return state


def _fold_workflow(
    transcript: Transcript, state: Mapping[str, Any] | None, steps: Sequence[StepRow]
) -> Mapping[str, Any] | None:
    """Add the finished steps of a workflow to its transcript, and return the state after them."""
    spans = transcript.spans
    for step in steps:
        index = int((step.call_id or "").removeprefix(STEP_PREFIX))
        body = _read_result(step)
        span = spans.find_open(step.call_id or "")
        span = span or spans.start_step(index, step.name or "", step.started_at)
        run_id = body["run_id"]
        if step.state not in ENDED:
            state = {"input": None, **(state or {}), "step": index, "run_id": run_id}
            continue
        member = spans.find_open(run_id)
        member = member or spans.start_member(run_id, body["member"], step.started_at, span.id)
        for each in (member, span):
            each.end("failed" if body["failed"] else "completed", step.ended_at)
        transcript.replace_content(body["text"])
        state = {"step": index + 1, "input": body["text"], "run_id": None}
    return state


def _add_working(conversation: Mapping[str, Any], steps: Sequence[StepRow]) -> dict[str, Any]:
    """Let the calls whose members work go on with their runs."""
    waiting = {
        step.call_id: asdict(WaitingCall(has_begun=True, state=_read_result(step)["run_id"]))
        for step in steps
    }
    return {**conversation, "waiting": {**waiting, **conversation["waiting"]}}


def _read_logged(state: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a step in the log of a function (`runtime.runners.replay`)."""
    call: dict[str, Any] = dict(body["call"])
    if state in ENDED and not call["is_done"]:
        # A person has reported the end of a step whose process died.
        call["is_done"] = True
        if state == "failed":
            return {**call, "reason": body["text"]}
        with suppress(orjson.JSONDecodeError):
            return {**call, "result": orjson.loads(body["text"])}
        return {**call, "result": body["text"]}
    return call


def _extend_state(state: Mapping[str, Any] | None, answer: Mapping[str, Any]) -> dict[str, Any]:
    before: Mapping[str, Any] = state or {"messages": [], "conversation": {}}
    messages = [*before["messages"], *answer["messages"]]
    kept = {**before["conversation"], **answer["conversation"], "waiting": {}}
    return {
        "conversation": kept,
        "messages": messages,
        "calls": messages[-1]["tool_calls"],
        "results": {},
        "model": answer["model"],
        "turns": answer["turns"],
        "corrected": answer["corrected"],
    }


def _extend_native(state: Mapping[str, Any] | None, native: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of `runtime.runners.pydantic_ai` after an answer."""
    before = [] if state is None or native["replaced"] else state["messages"]
    return {
        "messages": [*before, *native["messages"]],
        "first_message": native["first_message"],
        "usage": native["usage"],
        "metadata": {},
        "calls": {},
    }


def _close_calls(transcript: Transcript, state: dict[str, Any], ended: Sequence[StepRow]) -> None:
    """Add the results of the calls of an answer; there is one for each if a later answer exists."""
    is_native = "conversation" not in state
    results: dict[str, str] = {} if is_native else dict(state["results"])
    files = {} if is_native else dict(state["conversation"].get("result_files", {}))
    arguments = {} if is_native else {call["id"]: call["arguments"] for call in state["calls"]}
    for step in sorted(ended, key=lambda step: step.ended_at or 0):
        call_id = step.call_id or ""
        outcome = _read_result(step)
        results[call_id] = outcome["text"]
        files[call_id] = outcome.get("files")
        if not transcript.is_open(call_id):
            given = outcome.get("arguments") or arguments[call_id]
            transcript.open_call(call_id, step.name or "", given, step.started_at)
        if run_id := outcome.get("run_id"):
            transcript.spans.name_member(call_id, run_id)
        text = outcome["text"]
        failed = outcome["failed"]
        transcript.close_call(call_id, text, error=failed, at=step.ended_at, files=files[call_id])
    if is_native:
        return
    answers = [
        {
            "role": "tool",
            "content": results[call["id"]],
            "tool_call_id": call["id"],
            "tool_name": call["name"],
            **build_files(files.get(call["id"])),
        }
        for call in state["calls"]
        if call["id"] in results
    ]
    state["messages"] = [*state["messages"], *answers]


def _read_result(step: StepRow) -> dict[str, Any]:
    result: dict[str, Any] = orjson.loads(step.body or "{}")
    return {**result, "started_at": step.started_at, "ended_at": step.ended_at}


def _find_changes(steps: Sequence[StepRow]) -> dict[str, Any] | None:
    """Return the changes of the session state with the last step that has some, and their time."""
    ended = [step for step in steps if step.kind != "answer" and step.ended_at is not None]
    for step in sorted(ended, key=lambda step: step.ended_at or 0, reverse=True):
        changes: dict[str, Any] | None = orjson.loads(step.body or "{}").get("session_state")
        if changes is not None:
            return {**changes, "at": step.ended_at}
    return None


def begin_transcript(run: RunRow, kept: Sequence[Mapping[str, Any]] = ()) -> Transcript:
    """Return what a run that no process finished began with, so that its session goes on from it.

    Workflows have no messages.

    Args:
        kept: the messages of its origin with which it began. After the result of a tool it has no
            own message.
    """
    transcript = Transcript()
    if run.component_type == "workflow":
        return transcript

    transcript.add_kept(kept)
    if not kept or kept[-1]["role"] != "tool":
        files = [file for file in orjson.loads(run.files or "[]") if not is_saved(file)]
        asked: dict[str, Any] = {
            "role": "user",
            "content": run.input,
            "created_at": whole_seconds(run.created_at),
        }
        if files:
            asked["files"] = files
        transcript.add_kept([asked])
    return transcript


class EventFold:
    """The fold of the events of one run into a transcript.

    Args:
        transcript: what the run began with; its answers, calls and spans are added.
        leg_only: True if the transcript has all of the legs before the present one: the events
            before its begin are left out. So are those of a lost leg that was done again.

    Attributes:
        component_name: name of the component in the events; None without events.
    """

    def __init__(self, run: RunRow, transcript: Transcript, *, leg_only: bool = False) -> None:
        self.component_name: str | None = None
        self.transcript = transcript
        self._run = run
        self._has_begun = not leg_only
        self._has_messages = run.component_type != "workflow"
        self._began_with = len(transcript.messages)
        self._content_before = transcript.content
        # Of the calls, by their ids: a call of a later answer may repeat one.
        self._entries: dict[str, dict[str, Any]] = {
            entry["tool_call_id"]: entry for entry in transcript.tools
        }

    def apply(self, event: Event) -> None:
        """Apply an event of the run or of one of its members."""
        if event.kind is EventKind.CONTINUED and event.run_id == self._run.run_id:
            self._has_begun = self._has_begun or event.data["attempt"] == self._run.attempt
        if not self._has_begun:
            return
        if event.data.get("parent_run_id") == self._run.run_id:
            self._apply_member(event)
        if event.run_id != self._run.run_id:
            return
        data = event.data
        spans = self.transcript.spans
        self.component_name = data.get(f"{self._run.component_type}_name", self.component_name)
        match event.kind:
            case EventKind.CONTENT:
                self._add_text(str(data["content"]))
            case EventKind.STEP_STARTED:
                spans.start_step(data["step_index"], data["step_name"], _get_time(event))
            case EventKind.STEP_COMPLETED:
                self.transcript.replace_content(str(data["content"]))
                spans.end(f"{STEP_PREFIX}{data['step_index']}", "completed", _get_time(event))
            case EventKind.TOOL_CALL_STARTED | EventKind.TOOL_CALL_COMPLETED:
                self._apply_tool(dict(data["tool"]), _get_time(event))

    def _apply_tool(self, tool: dict[str, Any], at: int) -> None:
        # All keys first: an event without one of them is skipped as a whole.
        call_id = tool["tool_call_id"]
        name = tool["tool_name"]
        has_failed = tool["tool_call_error"]
        call = {"id": call_id, "name": name, "arguments": tool["tool_args"]}
        transcript = self.transcript
        entry = self._entries.setdefault(call_id, {})
        if not entry:
            transcript.tools.append(entry)
            transcript.spans.start_tool_call(call_id, name, at)
            if self._has_messages:
                transcript.request_call(call)
        entry.update(tool)
        if has_failed is not None:
            transcript.spans.end(call_id, "failed" if has_failed else "completed", at)
            transcript.add_result(call_id, str(tool["result"]), whole_seconds(at))

    def _add_text(self, text: str) -> None:
        transcript = self.transcript
        transcript.add_content(text)
        if not self._has_messages:
            return
        if transcript.open_answer is None:
            transcript.begin_answer()
            text = text.lstrip("\n")
        transcript.extend_answer(text)

    def _apply_member(self, event: Event) -> None:
        spans = self.transcript.spans
        if not spans.has(event.run_id):
            component = find_component(event.data)
            assert component is not None
            parent = self._find_delegation(component[1])
            spans.start_member(event.run_id, component[1], _get_time(event), parent)
        if event.end_status is not None:
            spans.end(event.run_id, SPAN_STATUSES[event.end_status], _get_time(event))

    def _find_delegation(self, component_id: str) -> str | None:
        for span in self.transcript.spans.find_open_without_member():
            arguments = self._entries.get(span.id, {}).get("tool_args") or {}
            if span.kind == "step" or arguments.get("member_id") == component_id:
                return span.id
        return None

    def end(self, at: int) -> Transcript:
        """Return the transcript, with a result for each open call: no process executes them."""
        transcript = self.transcript
        transcript.close_open_calls(at)
        is_unanswered = self._has_messages and len(transcript.messages) == self._began_with
        if is_unanswered and transcript.content != self._content_before:
            transcript.add_answer(transcript.content)
        return transcript


def _get_time(event: Event) -> int:
    return parse_rfc3339(event.at) if event.at else int(event.data["created_at"]) * 1_000_000


@unit
def _replay(
    root_id: str, apply: Callable[[Event], object], *, run_id: str = "", texts: bool = True
) -> Steps[None]:
    """Apply the stored events of a root run that name a run. Unreadable events are skipped."""
    named = run_id.encode()
    seq = -1
    while batches := (yield from events.list_after(root_id, seq)):
        for batch in batches:
            for event in decode_events(batch, texts=texts):
                if find_event_kind(event.name) is not None and named in event.data:
                    with suppress(InvalidResponse, ValueError, TypeError, KeyError):
                        apply(parse_event(event.name, event.data))
        seq = batches[-1].last_seq


class FoldedRun(NamedTuple):
    """The results that a run has left, while no process executes it."""

    transcript: Transcript
    """Its results; each call in it has an end."""

    component_name: str | None = None
    """The name in its events, as the component may not be configured here; None if unknown."""

    previous_instructions: str | None = None
    """The system message of the previous run of the session; None if unknown."""

    state_changes: StateChanges | None = None
    """The changes of the session state in its journal; None if it has none."""

    has_lost_leg: bool = False
    """True if a worker that died had a leg after the checkpoint."""


@unit
def fold_run(run: RunRow, at: int) -> Steps[FoldedRun]:
    """Fold everything that a run has left: its checkpoint, its journal, and its events.

    The journal of a durable run has all that counts of its legs; the text of an answer that was
    arriving is dropped, as it is when the run continues. The checkpoint of any other run has the
    legs before the lost leg, of which only the events are left.

    Args:
        run: its row; no process executes it.
        at: the time of the end of the calls that are open.
    """
    log = yield from load_log(run.run_id)
    body: Mapping[str, Any] = {}
    transcript = Transcript()
    if log is not None:
        try:
            body = log.fold(ends=True)
            transcript = Transcript.from_json(body["transcript"])
        except Exception:
            # A run must end, whatever is stored: its events remain.
            _log.exception("run %s: its checkpoint could not be read", run.run_id)
            log = None
            body = {}

    if not transcript.messages:
        first_transcript = begin_transcript(run, (yield from _read_kept(run)))
        transcript.add_kept(first_transcript.messages)

    has_leg = run.status == "RUNNING" and not (log is not None and log.is_durable)
    is_later_leg = log is not None and log.checkpoint.kind == PAUSE
    fold = EventFold(run, transcript, leg_only=is_later_leg)
    if log is None or has_leg:
        root_id = yield from find_root_id(run)
        yield from _replay(root_id, fold.apply, run_id=run.run_id)

    if log is None and not transcript.content:
        # A run that waits has its content in its row, too.
        transcript.replace_content(run.content or "")
    fold.end(at)

    changes = body.get("session_changes")
    return FoldedRun(
        transcript,
        body.get("component_name") or fold.component_name,
        body.get("previous_instructions"),
        None if changes is None else StateChanges(changes["values"], tuple(changes["removed"])),
        has_lost_leg=log is not None and log.has_lost_leg(run.attempt),
    )


@unit
def _read_kept(run: RunRow) -> Steps[Sequence[Mapping[str, Any]]]:
    """Return the messages of its origin with which a run began; none if they are gone."""
    if run.origin_run_id is None or run.component_type == "workflow":
        return ()
    origin = yield from run_reads.get(run.origin_run_id, EVERYONE)
    if origin is None:
        return ()
    messages = parse_messages(origin.messages or "[]") or []
    return mark_kept(messages[: run.origin_at or 0], origin.run_id)


@unit
def read_stored_spans(run: RunRow) -> Steps[list[dict[str, Any]]]:
    """Read the spans in the stored events of a live run that another process executes."""
    root_id = yield from find_root_id(run)
    fold = EventFold(run, Transcript())
    yield from _replay(root_id, fold.apply, run_id=run.run_id, texts=False)
    return fold.transcript.spans.records()


@unit
def read_stored_items(root_id: str) -> Steps[RunReader]:
    """Read the items of a live run and of the runs below it from its stored events."""
    reader = RunReader()
    yield from _replay(root_id, reader.apply)
    return reader


@unit
def find_root_id(run: RunRow | RunState) -> Steps[str]:
    """Return the id of the topmost ancestor of a run, which may be the run itself."""
    run_id = run.run_id
    parent_id = run.parent_run_id
    while parent_id is not None:
        parent = yield from run_reads.get_state(parent_id)
        if parent is None:
            break
        run_id = parent.run_id
        parent_id = parent.parent_run_id
    return run_id
