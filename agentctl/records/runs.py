"""Run and cancel records (docs/contract.md "Run record" and "Cancel")."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, NotRequired, get_args

from typing_extensions import TypedDict

from agentctl.records.approvals import ApprovalRecord, ApprovalSummary
from agentctl.records.kinds import ComponentKind, RunStatus
from agentctl.records.run_spec import OriginKind
from agentctl.records.sessions import PageMeta
from agentctl.records.times import Timestamp

FinalStatus = Literal["COMPLETED", "ERROR", "CANCELLED"]

FINAL_STATUSES: tuple[FinalStatus, ...] = get_args(FinalStatus)
"""The statuses of a run that has ended."""

CancelOutcome = Literal["stopped", "requested", "already_final"]

LateResult = Literal["dropped"]


class RunErrorRecord(TypedDict):
    """The failure of a run that ended as ERROR."""

    code: str
    detail: str


class CauseRecord(TypedDict):
    """The cause of a failure: an exception of the code of an agent or a tool.

    `run_id` and the component are those of the run that failed: the requested one, or one below it.
    `tool_name` is null for code other than that of a tool. `place` is the innermost line of the
    user's code, `FILE:LINE in FUNCTION`, with a path relative to the folder of the configuration;
    null if no line is known.
    """

    run_id: str
    component_type: ComponentKind
    component_id: str
    tool_name: str | None
    type: str
    message: str
    place: str | None
    raised_at: Timestamp


class RunCauses(TypedDict):
    """The causes of the failures of a run and of the runs below it.

    A failed call of a tool is one of them, also if the run completed.
    """

    run_id: str
    causes: list[CauseRecord]


class SpanRecord(TypedDict):
    """A part of a run with its times: a model call, a tool call, a member or a step.

    `parent` is the `id` of the tool call or the step that started a member. `first_token_at` is set
    for model calls of which something arrived. `member_run_id` is the run of a member, of its tool
    call and of its step.
    """

    kind: Literal["model", "tool", "member", "step"]
    id: str
    name: str
    parent: str | None
    started_at: Timestamp
    first_token_at: Timestamp | None
    finished_at: Timestamp | None
    status: Literal["completed", "failed", "cancelled"] | None
    input_tokens: int | None
    output_tokens: int | None
    member_run_id: str | None


class RunRecord(TypedDict):
    """One run, with one of `agent_id`, `team_id` and `workflow_id`.

    `stopped_at` is the time at which the work is known to have stopped; it is null in a final run
    whose work still executes. `holding` has the names of the tools that still work although the run
    has ended, `runner` for other code of an agent; it is null if they are not known. `late_result`
    is set if a result arrived after the final status and was dropped. A counter of `metrics` is
    null if it is not known. `total_tokens` includes the runs of members and steps, which `metrics`
    does not; both are those so far of a live run, and null if another process executes it.
    `purpose` is set for background work, which is a child of the run after which it is done.
    `queued_at` is the time at which it began to wait in the queue of its session, and
    `queue_position` its place there while it waits, from 1; both are null without a wait.
    `paused_at` is the time of its last pause, and `approvals` are what it waits or waited for, with
    those of its members. `spans` are the parts of the run with their times, open ones in a live
    run. `request_id` is that of the request that started it, members' runs included. `trace_id` is
    the trace of its first leg; null if it was not traced. `input` is the message, or without one
    the JSON text of `input_object`. `input_object` is the object `input`
    of the request; `metadata` and `session_state` are its objects of these names. `origin_run_id`
    is the run that it repeats, `origin_kind` the way, and `origin_at` is the number of messages of
    that run (steps of a workflow) that it began with.
    """

    run_id: str
    session_id: str
    parent_run_id: str | None
    agent_id: NotRequired[str]
    team_id: NotRequired[str]
    workflow_id: NotRequired[str]
    user_id: str | None
    status: RunStatus
    input: str
    input_object: dict[str, Any] | None
    content: str | None
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    metrics: dict[str, Any]
    total_tokens: int | None
    output: Any
    reasoning_content: str | None
    purpose: Literal["summary", "memory"] | None
    metadata: dict[str, Any] | None
    session_state: dict[str, Any] | None
    error: RunErrorRecord | None
    created_at: Timestamp
    queued_at: Timestamp | None
    queue_position: int | None
    started_at: Timestamp | None
    paused_at: Timestamp | None
    finished_at: Timestamp | None
    cancel_requested_at: Timestamp | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    stopped_at: Timestamp | None
    late_result: LateResult | None
    holding: list[str] | None
    request_id: str | None
    trace_id: str | None
    origin_run_id: str | None
    origin_kind: OriginKind | None
    origin_at: int | None
    approvals: list[ApprovalSummary]
    spans: list[SpanRecord]
    member_runs: list[str]


class ToolCallRecord(TypedDict):
    """One tool call of a run; `tool_call_error` is true if it failed or was cancelled."""

    tool_call_id: str
    tool_name: str
    tool_args: dict[str, Any]
    tool_call_error: bool | None
    result: str | None


class RunSummary(TypedDict):
    """One run without its content, messages and tool calls, as `view=summary` returns it.

    `input` has at most 200 characters. `tool_calls` is null until the run has ended, and if it is
    not known.
    """

    run_id: str
    session_id: str
    parent_run_id: str | None
    agent_id: NotRequired[str]
    team_id: NotRequired[str]
    workflow_id: NotRequired[str]
    user_id: str | None
    status: RunStatus
    input: str
    purpose: Literal["summary", "memory"] | None
    metrics: dict[str, Any]
    total_tokens: int | None
    tool_calls: int | None
    member_count: int
    error: RunErrorRecord | None
    created_at: Timestamp
    queued_at: Timestamp | None
    queue_position: int | None
    started_at: Timestamp | None
    paused_at: Timestamp | None
    finished_at: Timestamp | None
    cancel_requested_at: Timestamp | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    stopped_at: Timestamp | None
    late_result: LateResult | None
    holding: list[str] | None
    request_id: str | None
    origin_run_id: str | None
    origin_kind: OriginKind | None
    origin_at: int | None
    approvals: list[ApprovalSummary]


class RunSummaryPage(TypedDict):
    """A page of summaries of runs, across sessions."""

    data: list[RunSummary]
    meta: PageMeta


class RunPage(TypedDict):
    """A page of runs, across sessions."""

    data: list[RunRecord]
    meta: PageMeta


class RunDetails(NamedTuple):
    """The documents around the record of a run.

    Attributes:
        descendants: the runs below it, each after its parent.
        session_state: the state of its session.
        approvals: what it and they wait or waited for, oldest first.
    """

    descendants: list[RunRecord]
    session_state: dict[str, Any] | None
    approvals: list[ApprovalRecord]


class FoundTurn(NamedTuple):
    """The place of a turn: a run without a parent.

    Attributes:
        is_newest: no turn of its session began later.
        is_only: its session has no other turn.
    """

    kind: ComponentKind
    component_id: str
    session_id: str
    db_id: str
    is_newest: bool
    is_only: bool


class CancelRecord(TypedDict):
    """The result of a cancel: `stopped` only if the run ended as CANCELLED.

    `stopped_at` and `holding` are those of the run record: work may continue after the end.
    """

    run_id: str
    session_id: str
    status: RunStatus
    cancel: CancelOutcome
    cancel_requested_at: Timestamp | None
    cancel_requested_by: str | None
    finished_at: Timestamp | None
    stopped_at: Timestamp | None
    holding: list[str] | None
    reason: str | None
