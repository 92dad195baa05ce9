"""The journal of a durable run: what another process needs to go on with it (docs/decisions/0099).

It only grows: an answer of the model with its calls is one step, each call another one. The state
of a component at the last step is built from its checkpoint and the steps after it, so a step costs
as much as it adds, however long the conversation is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Literal, NamedTuple, Protocol

import orjson

from agentctl.light_dataclass import dataclass
from agentctl.runtime.pauses import CallOutcome, WaitingCall
from agentctl.runtime.transcript.transcript import Transcript

StepKind = Literal["answer", "tool", "step", "member"]

ENDED = ("done", "failed")
"""The states of a step that is never made again."""

IDEMPOTENT = "idempotent"
"""The key of the metadata of a tool whose calls may be made again with their id."""

MEMBER_PREFIX = "member-"
"""The id of a member that no call has started begins with it, and ends with its component."""

STEP_PREFIX = "step-"
"""The id of a step of a workflow begins with it, and ends with its index."""


class Parked(BaseException):  # not an error: code that catches errors must not see it
    """Raised by a component of a durable run between two steps: another process goes on."""

    def __init__(self) -> None:
        super().__init__("the run is handed over")


@dataclass(frozen=True, slots=True)
class JournaledCall:
    """A call of a durable run.

    Attributes:
        call_id: unique in the run, and the same in every attempt.
        idempotent: True if it may be made again with its id after its process died.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    idempotent: bool = False
    kind: StepKind = "tool"


class ApprovedEnd(NamedTuple):
    """The end of an approved call in its approval: the result without notes for the model."""

    approval_id: str
    text: str


class Journal(Protocol):
    """The journal of one durable run, as its component writes it.

    Every method raises asyncio.CancelledError if this process has lost the run, and Unavailable if
    the database does not answer: nothing may be called then.
    """

    @property
    def is_parking(self) -> bool:
        """True once the run is to be handed over: raise `Parked` before the next step."""
        ...

    async def add_answer(
        self, body: Mapping[str, Any], calls: Sequence[JournaledCall] = ()
    ) -> None:
        """Store an answer of the model, and that some of its calls begin."""
        ...

    async def replace_answer(self, body: Mapping[str, Any]) -> None:
        """Store an answer in place of the one before it; the calls before it are a part of it."""
        ...

    async def begin_call(self, call: JournaledCall, more: Mapping[str, Any] | None = None) -> None:
        """Store that a call begins, unless `add_answer` did.

        Args:
            more: further values of the step, a JSON object.
        """
        ...

    async def end_call(
        self,
        call: JournaledCall,
        outcome: CallOutcome,
        more: Mapping[str, Any] | None = None,
        approved: ApprovedEnd | None = None,
    ) -> None:
        """Store the result of a call, or that it waits in the middle.

        Args:
            approved: of a call that was approved: its end is stored in the same transaction.
        """
        ...


class StoredStep(Protocol):
    """A step of the journal, as `store.repositories.steps.StepRow`."""

    seq: int
    kind: str
    call_id: str | None
    name: str | None
    state: str
    started_at: int
    ended_at: int | None
    body: str | None


def dump_outcome(outcome: CallOutcome) -> dict[str, Any]:
    """Return the result of a call as JSON, see `load_outcome`."""
    return {
        "text": outcome.text,
        "failed": outcome.failed,
        "counts": outcome.counts_as_failure,
        "routed": outcome.is_routed,
    }


def load_outcome(stored: Mapping[str, Any]) -> CallOutcome:
    """Return the result of a call that a step has."""
    routed = bool(stored.get("routed"))
    return CallOutcome(stored["text"], stored["failed"], stored["counts"], is_routed=routed)


def rebuild(
    checkpoint: Mapping[str, Any], steps: Sequence[StoredStep], *, ends: bool = False
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
        state = _rebuild_workflow(transcript, state, new)
        present["session_changes"] = _find_changes(new)
        return {**present, "transcript": transcript.to_json(), "state": state}
    ended: list[StoredStep] = []
    working: list[StoredStep] = []
    logged: list[dict[str, Any]] = []
    for step in new:
        if step.kind == "answer":
            answer = orjson.loads(step.body or "{}")
            if "graph" in answer:
                # It has the whole transcript and state, of all steps before it.
                transcript, state = Transcript.from_json(answer["whole"]), answer["graph"]
                later = (each for each in new if each.seq >= answer["after"])
                ended = [each for each in later if each.state in ENDED]
                break
            present |= answer.get("begin", {})
            state = _add_answer(transcript, state, answer, ended)
            ended, working = [], []
        elif step.kind == "step":
            body = orjson.loads(step.body or "{}")
            present |= body.get("begin", {})
            logged.append(_read_logged(step.state, body))
        elif step.state in ENDED:
            ended.append(step)
        elif step.kind == "member":
            working.append(step)
    if logged:
        return {**present, "state": _extend_log(state, logged)}

    if state is not None:
        state = _add_calls(transcript, state, ended, working, ends=ends)
    present["session_changes"] = _find_changes(new)
    return {**present, "transcript": transcript.to_json(), "state": state}


def _add_answer(
    transcript: Transcript,
    state: dict[str, Any] | None,
    answer: Mapping[str, Any],
    ended: Sequence[StoredStep],
) -> dict[str, Any]:
    """Add an answer of the model to the transcript, and return the state after it.

    Args:
        ended: the calls of the answer before it.
    """
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
    ended: Sequence[StoredStep],
    working: Sequence[StoredStep],
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


def _rebuild_workflow(
    transcript: Transcript, state: Mapping[str, Any] | None, steps: Sequence[StoredStep]
) -> Mapping[str, Any] | None:
    """Add the finished steps of a workflow to its transcript, and return the state after them."""
    spans = transcript.spans
    for step in steps:
        index, body = int((step.call_id or "").removeprefix(STEP_PREFIX)), _read_result(step)
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


def _add_working(conversation: Mapping[str, Any], steps: Sequence[StoredStep]) -> dict[str, Any]:
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


def _extend_log(
    state: Mapping[str, Any] | None, logged: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    before: Mapping[str, Any] = state or {"calls": [], "output": []}
    by_id = {call["call_id"]: call for call in [*before["calls"], *logged]}
    return {**before, "calls": list(by_id.values())}


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


def _close_calls(
    transcript: Transcript, state: dict[str, Any], ended: Sequence[StoredStep]
) -> None:
    """Add the results of the calls of an answer; there is one for each if a later answer exists."""
    is_native = "conversation" not in state
    results: dict[str, str] = {} if is_native else dict(state["results"])
    arguments = {} if is_native else {call["id"]: call["arguments"] for call in state["calls"]}
    for step in sorted(ended, key=lambda step: step.ended_at or 0):
        call_id, outcome = step.call_id or "", _read_result(step)
        results[call_id] = outcome["text"]
        if call_id not in transcript.open_calls:
            given = outcome.get("arguments") or arguments[call_id]
            transcript.open_call(call_id, step.name or "", given, step.started_at)
        if run_id := outcome.get("run_id"):
            transcript.spans.name_member(call_id, run_id)
        transcript.close_call(call_id, outcome["text"], error=outcome["failed"], at=step.ended_at)
    if is_native:
        return
    state["messages"] = [
        *state["messages"],
        *(
            {
                "role": "tool",
                "content": results[call["id"]],
                "tool_call_id": call["id"],
                "tool_name": call["name"],
            }
            for call in state["calls"]
            if call["id"] in results
        ),
    ]


def _read_result(step: StoredStep) -> dict[str, Any]:
    result: dict[str, Any] = orjson.loads(step.body or "{}")
    return {**result, "started_at": step.started_at, "ended_at": step.ended_at}


def _find_changes(steps: Sequence[StoredStep]) -> dict[str, Any] | None:
    """Return the changes of the session state with the last step that has some, and their time."""
    ended = [step for step in steps if step.kind != "answer" and step.ended_at is not None]
    for step in sorted(ended, key=lambda step: step.ended_at or 0, reverse=True):
        changes: dict[str, Any] | None = orjson.loads(step.body or "{}").get("session_state")
        if changes is not None:
            return {**changes, "at": step.ended_at}
    return None
