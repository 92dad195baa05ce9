"""The fold of a run: its transcript and its state, built from what it has left behind.

A run leaves a checkpoint, the steps of its journal, and its events. Two folds read them:

- `fold_steps` adds the steps of a durable run to its checkpoint. The next leg continues from the
  result, and the questions about lost calls are built from it (`StoredLog`).
- `EventFold` adds events to a transcript. A run without a journal has only its events to show what
  it did after its checkpoint.

The end of a run that no process executes needs both (`fold_run`).

A run that waits in the queue has a start checkpoint, and so has a durable run. Its attempt is 0: it
was written before the first leg. It has no transcript and no state.

The events of a run and of its members' runs are one stream, stored under the id of the root run;
each event names its run. The joined deltas are the content; the content of a workflow is the output
of its last step. Calls of models have no events, so the fold of events makes no spans for them
(decision 53).
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
from agentctl.runtime.tracing import SPAN_STATUSES, SpanStatus
from agentctl.runtime.transcript.history import StateChanges, mark_kept
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Steps, Work, unit
from agentctl.store.repositories import approvals, events, run_messages, run_reads, steps
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
    """The checkpoint of a run and the steps of its journal.

    Args:
        journal: all steps of the run in their order; those before the checkpoint are part of it.
    """

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

        The worker may have delivered events that were never stored.

        Args:
            attempt: the attempt of the run; if it waits for its next leg, the attempt of that leg.
        """
        return attempt - self.checkpoint.attempt > 1

    def find_arguments(self) -> dict[str, Any]:
        """Return the arguments of the calls of a durable run by the ids of the calls.

        If an id was used again, the last call counts.
        """
        arguments: dict[str, Any] = {}

        # The state of a component has its calls in a form of its own. Only the calls of the own
        # loop are objects with arguments.
        state = self.body.get("state") or {}
        for call in state.get("calls", ()):
            if isinstance(call, dict) and "arguments" in call:
                arguments[call["id"]] = call["arguments"]

        for step in self.steps:
            body = orjson.loads(step.body or "{}")
            if step.call_id is not None and "arguments" in body:
                arguments[step.call_id] = body["arguments"]

            for message in body.get("messages", ()):
                for call in message.get("tool_calls", ()):
                    arguments[call["id"]] = call["arguments"]

        return arguments

    def fold(self, *, ends: bool = False) -> dict[str, Any]:
        """Return the checkpoint as it would be after the last step; see `fold_steps`."""
        return fold_steps(self.body, self.steps, ends=ends)


@unit
def load_log(run_id: str) -> Steps[StoredLog | None]:
    """Read the checkpoint and the journal of a run; None if it has no checkpoint."""
    checkpoint = yield from approvals.load_checkpoint(run_id)
    if checkpoint is None:
        return None

    journal = yield from steps.list_of_run(run_id)
    return StoredLog(checkpoint, journal)


def fold_steps(
    checkpoint: Mapping[str, Any], steps: Sequence[StepRow], *, ends: bool = False
) -> dict[str, Any]:
    """Return a checkpoint as it would be after the last step of a run.

    Its `state` has the form that the component of the run reads in its next leg; it is None if
    nothing has happened yet:

    - The own loop (`runtime.components.agent`) finds the results of the calls of the last answer in
      `known`. It makes the other calls again, except the calls in `waiting`: their members work.
    - A library (`runtime.runners.pydantic_ai`, `runtime.runners.langgraph`) finds them in `known`,
      too.
    - A function (`runtime.runners.replay`) finds the log of its steps in `calls`.
    - A workflow (`runtime.components.execute`) finds its next step, and the run of that step if it
      has begun.

    Args:
        checkpoint: the body of the stored checkpoint, of the start or of a pause.
        steps: all steps of the run in their order. Steps before the `next_step` of the checkpoint
            are part of the checkpoint already.
        ends: True if the run does not continue: its transcript gets the results of all calls that
            have ended, and no `known` remains.
    """
    folded = _complete(checkpoint)
    transcript = Transcript.from_json(folded["transcript"])
    state = folded["state"]

    first_step = checkpoint.get("next_step", 0)
    new_steps = [step for step in steps if step.seq >= first_step]

    if checkpoint["spec"]["component_type"] == "workflow":
        state = _fold_workflow(transcript, state, new_steps)
        folded["session_changes"] = _find_changes(new_steps)
    elif any(step.kind == "step" for step in new_steps):
        # The function repeats its changes of the session state when it runs again from its top.
        state = _fold_function(state, new_steps)
        folded |= _find_begin(new_steps)
    else:
        transcript, state = _fold_answers(transcript, state, new_steps, ends=ends)
        folded["session_changes"] = _find_changes(new_steps)
        folded |= _find_begin(new_steps)

    # The first step names it, as a start checkpoint has no transcript.
    transcript.runner_kind = folded.pop("runner_kind", transcript.runner_kind)
    return {**folded, "transcript": transcript.to_json(), "state": state}


def _complete(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint with the values that a start checkpoint does not have."""
    return {
        "transcript": Transcript().to_json(),
        "state": None,
        "is_first": False,
        "earlier_runs": None,
        "summary": None,
        "previous_instructions": None,
        "session_changes": None,
        **checkpoint,
    }


def _find_begin(steps: Sequence[StepRow]) -> dict[str, Any]:
    """Return what the component was given; only the first step of a run has it."""
    for step in steps:
        if step.kind in ("answer", "step"):
            begin: dict[str, Any] | None = _load_body(step).get("begin")
            if begin is not None:
                return begin
    return {}


def _find_changes(steps: Sequence[StepRow]) -> dict[str, Any] | None:
    """Return the changes of the session state with the last step that has some, and their time."""
    ended_calls = [step for step in steps if step.kind != "answer" and step.ended_at is not None]
    for step in sorted(ended_calls, key=_get_end, reverse=True):
        changes: dict[str, Any] | None = _load_body(step).get("session_state")
        if changes is not None:
            return {**changes, "at": step.ended_at}
    return None


def _fold_workflow(
    transcript: Transcript, state: Mapping[str, Any] | None, steps: Sequence[StepRow]
) -> Mapping[str, Any] | None:
    """Add the steps of a workflow to its transcript, and return the state after them.

    Each step of a workflow is the run of a member. The output of one step is the input of the next.
    """
    spans = transcript.spans
    for step in steps:
        step_id = step.call_id or ""
        index = int(step_id.removeprefix(STEP_PREFIX))
        body = _load_body(step)
        run_id = body["run_id"]
        step_span = spans.find_open(step_id)
        if step_span is None:
            step_span = spans.start_step(index, step.name or "", step.started_at)

        if step.state not in ENDED:
            # The next leg waits for the run of the step that works.
            state = {"input": None, **(state or {}), "step": index, "run_id": run_id}
            continue

        member_span = spans.find_open(run_id)
        if member_span is None:
            member_span = spans.start_member(run_id, body["member"], step.started_at, step_span.id)

        status: SpanStatus = "failed" if body["failed"] else "completed"
        member_span.end(status, step.ended_at)
        step_span.end(status, step.ended_at)
        transcript.replace_content(body["text"])
        state = {"step": index + 1, "input": body["text"], "run_id": None}

    return state


def _fold_function(state: Mapping[str, Any] | None, steps: Sequence[StepRow]) -> dict[str, Any]:
    """Return the state of a function with its logged steps; a later entry replaces an earlier."""
    before: Mapping[str, Any] = state or {"calls": [], "output": []}
    calls = {call["call_id"]: call for call in before["calls"]}

    for step in steps:
        if step.kind == "step":
            call = _read_logged_call(step)
            calls[call["call_id"]] = call

    return {**before, "calls": list(calls.values())}


def _read_logged_call(step: StepRow) -> dict[str, Any]:
    """Return the entry of a step in the log of a function (`runtime.runners.replay`)."""
    body = _load_body(step)
    call: dict[str, Any] = dict(body["call"])
    if call["is_done"] or step.state not in ENDED:
        return call

    # A person has reported the end of a step whose process died.
    call["is_done"] = True
    if step.state == "failed":
        call["reason"] = body["text"]
        return call

    call["result"] = body["text"]
    with suppress(orjson.JSONDecodeError):
        call["result"] = orjson.loads(body["text"])
    return call


def _fold_answers(
    transcript: Transcript, state: dict[str, Any] | None, steps: Sequence[StepRow], *, ends: bool
) -> tuple[Transcript, dict[str, Any] | None]:
    """Add the answers of a model and their calls; return the transcript and the state after them.

    The calls of an answer are the steps after it.
    """
    graph_answer = _find_graph_answer(steps)
    if graph_answer is not None:
        # A graph has one answer. It is stored again after each superstep with the whole transcript
        # and state so far, so only the calls after it are new.
        transcript = Transcript.from_json(graph_answer["whole"])
        state = graph_answer["graph"]
        steps = [step for step in steps if step.seq >= graph_answer["after"]]

    ended_calls: list[StepRow] = []
    working_members: list[StepRow] = []
    for step in steps:
        if step.kind == "answer":
            # The model answers when all calls of its previous answer have ended.
            state = _add_answer(transcript, state, _load_body(step), ended_calls)
            ended_calls = []
            working_members = []
        elif step.state in ENDED:
            ended_calls.append(step)
        elif step.kind == "member":
            working_members.append(step)

    if state is None:
        return transcript, None

    if ended_calls and ends:
        state = _close_calls(transcript, state, ended_calls)
    elif ended_calls:
        known = {step.call_id: _read_result(step) for step in ended_calls}
        state = {**state, "known": known}

    if working_members and _is_of_own_loop(state):
        conversation = _add_working(state["conversation"], working_members)
        state = {**state, "conversation": conversation}
    return transcript, state


def _find_graph_answer(steps: Sequence[StepRow]) -> dict[str, Any] | None:
    """Return the answer of a graph with its whole state; None for every other component."""
    for step in steps:
        if step.kind == "answer":
            answer = _load_body(step)
            if "graph" in answer:
                return answer
    return None


def _is_of_own_loop(state: Mapping[str, Any]) -> bool:
    """Return True for the state of the own loop, and False for the state of a library."""
    return "conversation" in state


def _add_answer(
    transcript: Transcript,
    state: dict[str, Any] | None,
    answer: Mapping[str, Any],
    ended_calls: Sequence[StepRow],
) -> dict[str, Any]:
    """Add an answer, after the ended calls of the answer before it; return the state after it."""
    if "native" in answer:
        # It has the results of the calls before it, in the messages of the library and in its
        # additions to the transcript.
        state = _extend_native(state, answer["native"])
    else:
        if state is not None:
            state = _close_calls(transcript, state, ended_calls)
        state = _extend_own(state, answer)

    transcript.extend(answer["transcript"])
    return state


def _extend_native(state: Mapping[str, Any] | None, native: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of `runtime.runners.pydantic_ai` after an answer."""
    earlier_messages: Sequence[Any] = ()
    if state is not None and not native["replaced"]:
        earlier_messages = state["messages"]

    return {
        "messages": [*earlier_messages, *native["messages"]],
        "first_message": native["first_message"],
        "usage": native["usage"],
        "metadata": {},
        "calls": {},
    }


def _extend_own(state: Mapping[str, Any] | None, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of `runtime.components.agent` after an answer."""
    before: Mapping[str, Any] = state or {"messages": [], "conversation": {}}
    messages = [*before["messages"], *answer["messages"]]
    conversation = {**before["conversation"], **answer["conversation"], "waiting": {}}
    return {
        "conversation": conversation,
        "messages": messages,
        "calls": messages[-1]["tool_calls"],
        "results": {},
        "model": answer["model"],
        "turns": answer["turns"],
        "corrected": answer["corrected"],
    }


def _add_working(conversation: Mapping[str, Any], steps: Sequence[StepRow]) -> dict[str, Any]:
    """Let the calls whose members work continue with the runs of these members."""
    working_calls = {
        step.call_id: asdict(WaitingCall(has_begun=True, state=_load_body(step)["run_id"]))
        for step in steps
    }
    return {**conversation, "waiting": {**working_calls, **conversation["waiting"]}}


def _close_calls(
    transcript: Transcript, state: dict[str, Any], ended_calls: Sequence[StepRow]
) -> dict[str, Any]:
    """Add the results of the calls of an answer; return the state with their messages."""
    arguments: dict[str, Any] = {}
    if _is_of_own_loop(state):
        arguments = {call["id"]: call["arguments"] for call in state["calls"]}

    # In the order of their ends, as a live run adds them to its transcript.
    ended_calls = sorted(ended_calls, key=_get_end)
    for step in ended_calls:
        _close_call(transcript, step, arguments)

    if not _is_of_own_loop(state):
        # The messages of a library are in a form of its own, and the run ends here.
        return state
    return {**state, "messages": [*state["messages"], *_build_results(state, ended_calls)]}


def _close_call(transcript: Transcript, step: StepRow, arguments: Mapping[str, Any]) -> None:
    """Add an ended call to a transcript.

    Args:
        arguments: of the calls of the answer, by their ids. The arguments in the step count first:
            a person may have edited them.
    """
    result = _load_body(step)
    call_id = step.call_id or ""
    if not transcript.is_open(call_id):
        call_arguments = result.get("arguments") or arguments[call_id]
        transcript.open_call(call_id, step.name or "", call_arguments, step.started_at)

    member_run_id = result.get("run_id")
    if member_run_id:
        transcript.spans.name_member(call_id, member_run_id)

    transcript.close_call(
        call_id, result["text"], error=result["failed"], at=step.ended_at, files=result.get("files")
    )


def _build_results(
    state: Mapping[str, Any], ended_calls: Sequence[StepRow]
) -> list[dict[str, Any]]:
    """Build the messages with the results of the calls of the last answer, in their order.

    Calls that ended before the checkpoint have their results in the state.
    """
    texts: dict[str, str] = dict(state["results"])
    files: dict[str, str | None] = dict(state["conversation"].get("result_files", {}))
    for step in ended_calls:
        result = _load_body(step)
        texts[step.call_id or ""] = result["text"]
        files[step.call_id or ""] = result.get("files")

    return [
        {
            "role": "tool",
            "content": texts[call["id"]],
            "tool_call_id": call["id"],
            "tool_name": call["name"],
            **build_files(files.get(call["id"])),
        }
        for call in state["calls"]
        if call["id"] in texts
    ]


def _read_result(step: StepRow) -> dict[str, Any]:
    """Return the result of an ended call with its times, as the next leg reads it."""
    return {**_load_body(step), "started_at": step.started_at, "ended_at": step.ended_at}


def _get_end(step: StepRow) -> int:
    return step.ended_at or 0


def _load_body(step: StepRow) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(step.body or "{}")
    return body


def begin_transcript(run: RunRow, kept_messages: Sequence[Mapping[str, Any]] = ()) -> Transcript:
    """Return the transcript with which a run began, so that its session continues from it.

    For a run that no process finished. A workflow has no messages, so its transcript is empty.

    Args:
        kept_messages: the messages of its origin with which it began. If the last one is the result
            of a tool, or was sent to its origin while it worked, the run has no message of its own.
    """
    transcript = Transcript()
    if run.component_type == "workflow":
        return transcript

    transcript.add_kept(kept_messages)
    if kept_messages:
        last_message = kept_messages[-1]
        if last_message["role"] == "tool" or "message_id" in last_message:
            return transcript

    question: dict[str, Any] = {
        "role": "user",
        "content": run.input,
        "created_at": whole_seconds(run.created_at),
    }
    files = [file for file in orjson.loads(run.files or "[]") if not is_saved(file)]
    if files:
        question["files"] = files
    transcript.add_kept([question])
    return transcript


class EventFold:
    """The fold of the events of one run into a transcript.

    Apply all events of its stream in their order, then call `end`.

    Args:
        transcript: the transcript with which the run began. Answers, calls and spans are added.
        leg_only: True if the transcript has all legs before the present one. Events before the
            begin of the present leg are left out then, and so are the events of a lost leg that was
            repeated.
    """

    def __init__(self, run: RunRow, transcript: Transcript, *, leg_only: bool = False) -> None:
        self.component_name: str | None = None
        """The name of the component in the events; None without events."""

        self.transcript = transcript
        self._run = run
        self._has_begun = not leg_only
        self._has_messages = run.component_type != "workflow"
        self._first_message_count = len(transcript.messages)
        self._first_content = transcript.content
        # By the ids of the calls. A call of a later answer may repeat an id.
        self._entries: dict[str, dict[str, Any]] = {
            entry["tool_call_id"]: entry for entry in transcript.tools
        }

    def apply(self, event: Event) -> None:
        """Apply an event of the run or of one of its members; ignore the events of other runs.

        Raises:
            KeyError: a member of the JSON of the event is missing.
        """
        is_own = event.run_id == self._run.run_id
        if not self._has_begun and is_own and event.kind is EventKind.CONTINUED:
            self._has_begun = event.data["attempt"] == self._run.attempt
        if not self._has_begun:
            return

        if event.data.get("parent_run_id") == self._run.run_id:
            self._apply_member(event)
        if is_own:
            self._apply_own(event)

    def _apply_own(self, event: Event) -> None:
        data = event.data
        spans = self.transcript.spans
        self.component_name = data.get(f"{self._run.component_type}_name", self.component_name)

        match event.kind:
            case EventKind.CONTENT:
                self._add_text(str(data["content"]))
            case EventKind.MESSAGE_DELIVERED:
                self.transcript.add_message(data["message_id"], str(data["content"]))
            case EventKind.STEP_STARTED:
                spans.start_step(data["step_index"], data["step_name"], _get_time(event))
            case EventKind.STEP_COMPLETED:
                self.transcript.replace_content(str(data["content"]))
                spans.end(f"{STEP_PREFIX}{data['step_index']}", "completed", _get_time(event))
            case EventKind.TOOL_CALL_STARTED | EventKind.TOOL_CALL_COMPLETED:
                self._apply_tool(dict(data["tool"]), _get_time(event))

    def _apply_tool(self, tool: dict[str, Any], at: int) -> None:
        # Read all keys first: an event without one of them is skipped as a whole.
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
            # In the content, the line feeds part this answer from the one before it.
            text = text.lstrip("\n")
        transcript.extend_answer(text)

    def _apply_member(self, event: Event) -> None:
        spans = self.transcript.spans
        if not spans.has(event.run_id):
            component = find_component(event.data)
            assert component is not None
            _, component_id = component
            parent_id = self._find_delegation(component_id)
            spans.start_member(event.run_id, component_id, _get_time(event), parent_id)

        if event.end_status is not None:
            spans.end(event.run_id, SPAN_STATUSES[event.end_status], _get_time(event))

    def _find_delegation(self, component_id: str) -> str | None:
        """Return the open step or call that has started a member; None if there is none."""
        for span in self.transcript.spans.find_open_without_member():
            if span.kind == "step":
                return span.id

            arguments = self._entries.get(span.id, {}).get("tool_args") or {}
            if arguments.get("member_id") == component_id:
                return span.id
        return None

    def end(self, at: int) -> Transcript:
        """Return the transcript, with a result for each open call: no process executes them.

        Args:
            at: the time of the results in microseconds UTC.
        """
        transcript = self.transcript
        transcript.close_open_calls(at)

        # The content in the row of a run without stored events belongs to no message yet.
        has_new_message = len(transcript.messages) > self._first_message_count
        has_new_content = transcript.content != self._first_content
        if self._has_messages and has_new_content and not has_new_message:
            transcript.add_answer(transcript.content)
        return transcript


def _get_time(event: Event) -> int:
    """Return the time of an event in microseconds UTC. Older events have seconds only."""
    if event.at:
        return parse_rfc3339(event.at)
    return int(event.data["created_at"]) * 1_000_000


@unit
def _replay(
    root_id: str, apply: Callable[[Event], object], *, run_id: str = "", texts: bool = True
) -> Steps[None]:
    """Apply the stored events of a root run. Unreadable events are skipped.

    Args:
        run_id: only events that name this run; all events by default.
        texts: False leaves out the pieces of texts.
    """
    run_name = run_id.encode()
    last_seq = -1
    while batches := (yield from events.list_after(root_id, last_seq)):
        for batch in batches:
            for event in decode_events(batch, texts=texts):
                # To parse an event costs more than to search its bytes.
                if find_event_kind(event.name) is None or run_name not in event.data:
                    continue
                with suppress(InvalidResponse, ValueError, TypeError, KeyError):
                    apply(parse_event(event.name, event.data))

        last_seq = batches[-1].last_seq


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
    legs before the lost leg, and only events are left of the lost leg.

    Args:
        run: its row; no process executes it.
        at: the time of the end of the calls that are open, in microseconds UTC.
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
        kept_messages = yield from _read_kept_messages(run)
        first_transcript = begin_transcript(run, kept_messages)
        transcript.add_kept(first_transcript.messages)

    is_later_leg = log is not None and log.checkpoint.kind == PAUSE
    fold = EventFold(run, transcript, leg_only=is_later_leg)
    # A run that waits has all of its legs in its checkpoint, a durable run in its journal.
    has_unfolded_leg = run.status == "RUNNING" and (log is None or not log.is_durable)
    if log is None or has_unfolded_leg:
        root_id = yield from find_root_id(run)
        yield from _replay(root_id, fold.apply, run_id=run.run_id)

    if log is None and not transcript.content:
        # A run that waits has its content in its row, too.
        transcript.replace_content(run.content or "")
    fold.end(at)
    if run.parent_run_id is None:
        yield from _add_messages(run.run_id, transcript)

    state_changes: StateChanges | None = None
    changes = body.get("session_changes")
    if changes is not None:
        state_changes = StateChanges(changes["values"], tuple(changes["removed"]))

    return FoldedRun(
        transcript,
        component_name=body.get("component_name") or fold.component_name,
        previous_instructions=body.get("previous_instructions"),
        state_changes=state_changes,
        has_lost_leg=log is not None and log.has_lost_leg(run.attempt),
    )


@unit
def _add_messages(run_id: str, transcript: Transcript) -> Steps[None]:
    """Add the messages that a model call was to get, and of which the run has left nothing else."""
    for message in (yield from run_messages.list_of_run(run_id)):
        if message.status == "delivered":
            transcript.add_message(message.message_id, message.content)


@unit
def _read_kept_messages(run: RunRow) -> Steps[Sequence[Mapping[str, Any]]]:
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
