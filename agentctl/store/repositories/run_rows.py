"""The values that the repository of runs takes and returns."""

from __future__ import annotations

from typing import NamedTuple

from agentctl.light_dataclass import dataclass
from agentctl.records.run_spec import RunSpec


# Not frozen, for the reason of `sessions.SummaryRow`.
@dataclass(slots=True)
class RunRow:
    """A stored run. Times are microseconds UTC, flags 0 or 1.

    `metrics`, `history`, `tools` and `messages` are JSON texts, None until the run has ended. So is
    `output`, which also is None if the run has no structured result. `purpose` is `summary` or
    `memory` for background work, None for every other run. `metadata` and `session_state`
    are JSON objects of the request, None if it had none; so is `input_object`, also of the first
    step of a workflow. `holding` is a JSON array with the names
    of the work that continues after the end of the run, None if there is none or it is not known.
    `spans` is a JSON array of the times of its parts, None until the run has ended. `request_id`
    is the id of the request that started it, None if it is not known. `paused_at` is the time of
    its last pause. `queued_at` is the time at which it began to wait in the queue, None if it never
    did; `queue_turn` is None unless a server may begin it (`repositories.queue`). `origin_run_id`,
    `origin_kind` and `origin_at` name the run that it repeats, see `records.run_spec.Origin`.
    `trace` is its place in a trace, None if it is not traced (`RunSpec.trace`).
    """

    run_id: str
    session_id: str
    seq: int
    parent_run_id: str | None
    component_type: str
    component_id: str
    user_id: str | None
    status: str
    background: int
    attempt: int
    owner: str | None
    cancel_requested_at: int | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    stopped_at: int | None
    late_result: int
    error_code: str | None
    error_detail: str | None
    metrics: str | None
    history: str | None
    input: str
    input_object: str | None
    content: str | None
    tools: str | None
    messages: str | None
    metadata: str | None
    session_state: str | None
    output: str | None
    reasoning_content: str | None
    purpose: str | None
    holding: str | None
    spans: str | None
    request_id: str | None
    paused_at: int | None
    queued_at: int | None = None
    queue_turn: int | None = None
    origin_run_id: str | None = None
    origin_kind: str | None = None
    origin_at: int | None = None
    trace: str | None = None


@dataclass(slots=True)
class Turn:
    """The question and the answer of a top-level run that has ended."""

    run_id: str
    seq: int
    input: str
    content: str | None


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run, without its content."""

    run_id: str
    session_id: str
    parent_run_id: str | None
    component_type: str
    component_id: str
    user_id: str | None
    status: str
    attempt: int
    owner: str | None
    cancel_requested_at: int | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    finished_at: int | None
    stopped_at: int | None
    error_code: str | None
    error_detail: str | None
    holding: str | None
    queued_at: int | None
    queue_turn: int | None


@dataclass(slots=True)
class LastRunState:
    """The part of `RunState` that a list of sessions shows of their newest runs.

    `holding` is None if the work of the run has ended.
    """

    session_id: str
    run_id: str
    status: str
    cancel_requested_at: int | None
    cancel_requested_by: str | None
    finished_at: int | None
    stopped_at: int | None
    error_code: str | None
    error_detail: str | None
    holding: str | None


class StoredHistory(NamedTuple):
    """The history of a run: its number, and a JSON array in UTF-8 without its brackets."""

    seq: int
    text: bytes


class NewRun(NamedTuple):
    """A run to create.

    Attributes:
        owner: the id of the worker that executes it or will claim it; None for a queued run.
        session_name: the name for a session without a name; None for a child.
        queue_turn: how it waits in the queue (`repositories.queue`); None if it does not.
    """

    spec: RunSpec
    owner: str | None
    created_at: int
    session_name: str | None = None
    queue_turn: int | None = None


@dataclass(frozen=True, slots=True)
class RunPause:
    """The pause of a run, with its results so far as JSON texts.

    Attributes:
        attempt: the attempt of the leg that has ended.
        status: PAUSED, or PENDING if everything that it waits for was decided meanwhile.
    """

    run_id: str
    attempt: int
    status: str
    paused_at: int
    content: str
    messages: str
    tools: str
    metrics: str
    spans: str


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run: its final status (COMPLETED, ERROR or CANCELLED) and its result.

    Attributes:
        attempt: the attempt of the run that has ended; an older one is refused.
        history: JSON array of the entries in `chat_history` (docs/contract.md "Run record").
        metrics: JSON object of the token counters of the run, without those of its children.
        stopped_at: the time at which the work stopped; None if that is not known.
        late_result: True if a result arrived after the end and was dropped.
        cancel_reason: replaces the reason of the cancel request.
        output: the structured result as JSON; None for none.
        reasoning_content: the thinking of the model; None for none.
        native_kind, native_history: the kind of runner, and the messages of the run in the JSON
            form of its library; None for none.
        holding: JSON array of the names of the work that continues; None for none, or if that is
            not known.
        spans: JSON array of the times of its parts; None for none.
        causes: JSON array of the causes of its failures (`runtime.causes`); None for none.
        model: the model of its first model call; None for none, or if that is not known.
        model_metrics: of a run of several models, JSON object of the token counters of each one.
        model_calls: number of its model calls.
        first_token_at: time of the first part of an answer of a model; None for none.
    """

    run_id: str
    attempt: int
    status: str
    content: str | None
    history: str | None
    messages: str | None
    tools: str | None
    metrics: str | None
    error_code: str | None
    error_detail: str | None
    finished_at: int
    stopped_at: int | None
    late_result: bool = False
    cancel_reason: str | None = None
    output: str | None = None
    reasoning_content: str | None = None
    native_kind: str | None = None
    native_history: str | None = None
    holding: str | None = None
    spans: str | None = None
    causes: str | None = None
    model: str | None = None
    model_metrics: str | None = None
    model_calls: int = 0
    first_token_at: int | None = None
