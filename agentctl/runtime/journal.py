"""The journal of a durable run: what another process needs to go on with it (docs/decisions/0099).

It only grows: an answer of the model with its calls is one step, each call another one. The state
of a component at the last step is built from its checkpoint and the steps after it, so a step costs
as much as it adds, however long the conversation is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import orjson

from agentctl.runtime.pauses import CallOutcome
from agentctl.runtime.transcript import Transcript

StepKind = Literal["answer", "tool", "step", "member"]

ENDED = ("done", "failed")
"""The states of a step that is never made again."""


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

    async def begin_call(self, call: JournaledCall, more: Mapping[str, Any] | None = None) -> None:
        """Store that a call begins, unless `add_answer` did.

        Args:
            more: further values of the step, a JSON object.
        """
        ...

    async def end_call(
        self, call: JournaledCall, outcome: CallOutcome, more: Mapping[str, Any] | None = None
    ) -> None:
        """Store the result of a call, or that it waits in the middle."""
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
    return {"text": outcome.text, "failed": outcome.failed, "counts": outcome.counts_as_failure}


def load_outcome(stored: Mapping[str, Any]) -> CallOutcome:
    """Return the result of a call that a step has."""
    return CallOutcome(stored["text"], stored["failed"], stored["counts"])


def rebuild(
    checkpoint: Mapping[str, Any], steps: Sequence[StoredStep], *, ends: bool = False
) -> dict[str, Any]:
    """Return a checkpoint as it would be after the last step of a run.

    Its `state` is that of `runtime.components.agent`, with the results of the calls of the last
    answer in `known`; None if nothing has happened yet. Calls that have no end are made again.

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
    ended: list[StoredStep] = []
    logged: list[dict[str, Any]] = []
    for step in new:
        if step.kind == "answer":
            answer = orjson.loads(step.body or "{}")
            present |= answer.get("begin", {})
            if state is not None:
                _close_calls(transcript, state, ended)
            transcript.extend(answer["transcript"])
            state = _extend_state(state, answer)
            ended = []
        elif step.kind == "step":
            body = orjson.loads(step.body or "{}")
            present |= body.get("begin", {})
            logged.append(_read_logged(step.state, body))
        elif step.state in ENDED:
            ended.append(step)
    if logged:
        return {**present, "state": _extend_log(state, logged)}
    if state is not None and ended and ends:
        _close_calls(transcript, state, ended)
    elif state is not None and ended:
        known = {step.call_id: _read_result(step) for step in ended}
        state = {**state, "known": known}
    present["session_changes"] = _find_changes(new)
    return {**present, "transcript": transcript.to_json(), "state": state}


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


def _close_calls(
    transcript: Transcript, state: dict[str, Any], ended: Sequence[StoredStep]
) -> None:
    """Add the results of the calls of an answer; there is one for each if a later answer exists."""
    results: dict[str, str] = dict(state["results"])
    arguments = {call["id"]: call["arguments"] for call in state["calls"]}
    for step in sorted(ended, key=lambda step: step.ended_at or 0):
        call_id, outcome = step.call_id or "", _read_result(step)
        results[call_id] = outcome["text"]
        if call_id not in transcript.open_calls:
            given = outcome.get("arguments") or arguments[call_id]
            transcript.open_call(call_id, step.name or "", given, step.started_at)
        transcript.close_call(call_id, outcome["text"], error=outcome["failed"], at=step.ended_at)
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
    """Return the changes of the session state with the last step that has some."""
    ended = [step for step in steps if step.kind != "answer" and step.state in ENDED]
    for step in sorted(ended, key=lambda step: step.ended_at or 0, reverse=True):
        changes: dict[str, Any] | None = orjson.loads(step.body or "{}").get("session_state")
        if changes is not None:
            return changes
    return None
