"""Runs: their records (docs/contract.md "Run record" and "Cancel"), and their stored columns.

A field of a run is declared here alone: in a record, whose type the documents, the import and the
OpenAPI document follow, and in a row, which the statements of `store.repositories` follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NotRequired, get_args

from typing_extensions import TypedDict

from agentctl.records.approvals import ApprovalRecord, ApprovalSummary
from agentctl.records.document import derive
from agentctl.records.files import RunFileRecord
from agentctl.records.kinds import ComponentKind, RunStatus
from agentctl.records.run_messages import RunMessageRecord
from agentctl.records.run_spec import OriginKind, RunSpec
from agentctl.records.sessions import PageMeta, SearchMatch, SessionDetail
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


MODEL_FAILURE = "ModelFailure"
"""The `type` of a cause that is a failed call of a model: its message is the response of the
provider."""


class CauseRecord(TypedDict):
    """The cause of a failure: an exception of the code of an agent or a tool, or the response of a
    model provider, whose `type` is `ModelFailure`.

    `run_id` and the component name the run that failed: the requested one, or one below it.
    `tool_name` is null if the code is not a tool. `place` is the innermost line of the
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


class FailureRecord(TypedDict):
    """A failed run with the exception that ended it.

    `cause` is null for a failure that is none of the code of an agent, a tool or a model provider,
    and for one of a process that died. It is the last cause of the run, or of the last failed run
    below it.
    """

    run_id: str
    error: RunErrorRecord
    finished_at: Timestamp
    cause: CauseRecord | None


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


class VersionChange(TypedDict):
    """A change of the version of a component while one of its runs waited."""

    before: str
    after: str
    at: Timestamp


class RunRecord(TypedDict):
    """One run, with one of `agent_id`, `team_id` and `workflow_id`.

    `stopped_at` is the time at which the work is known to have stopped; it is null in a final run
    whose work still executes. `holding` has the names of the tools that still work although the run
    has ended, `runner` for other code of an agent; it is null if they are not known. `late_result`
    is set if a result arrived after the final status and was dropped. A counter of `metrics` is
    null if it is not known. `total_tokens` includes the runs of members and steps, which `metrics`
    does not; both are those so far of a live run, and null if another process executes it. `cost`
    is the cost of `total_tokens` in US dollars, known when the run has ended. It lacks
    `unpriced_tokens`, whose price is not known, and is null if no token has a price.
    `purpose` is set for background work, which is a child of the run after which it is done.
    `queued_at` is the time at which it began to wait in the queue of its session, and
    `queue_position` its place there while it waits, from 1; both are null without a wait.
    `paused_at` is the time of its last pause, and `approvals` are what it waits or waited for, with
    those of its members. `spans` are the parts of the run with their times, open ones in a live
    run. `request_id` names the request that started it or its root run. `trace_id` is the trace of
    its first leg; null if it was not traced. `version` is the version of the component that
    answered; null if it is not known. `version_changes` are those while it waited: it went on with
    another version. `input` is the message, or without one the JSON text of `input_object`; `files`
    are its files, and those that the run has made. `input_object` is the object `input` of the
    request; `metadata` and `session_state` are its objects of these names. `origin_run_id`
    is the run that it repeats, `origin_kind` the way, and `origin_at` is the number of messages of
    that run (steps of a workflow) that it began with. `damaged` names the fields whose stored
    values are damaged (docs/databases.md "Damaged data"): they are null, empty or zero. `match` is
    in the results of a search only. `sent_message` is in the response to a start that became a
    message of a run that works (`on_busy = "steer"`).
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
    files: list[RunFileRecord]
    content: str | None
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    metrics: dict[str, Any]
    total_tokens: int | None
    cost: float | None
    unpriced_tokens: int | None
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
    version: str | None
    version_changes: list[VersionChange]
    trace_id: str | None
    origin_run_id: str | None
    origin_kind: OriginKind | None
    origin_at: int | None
    approvals: list[ApprovalSummary]
    spans: list[SpanRecord]
    member_runs: list[str]
    damaged: NotRequired[list[str]]
    match: NotRequired[SearchMatch]
    sent_message: NotRequired[RunMessageRecord]


class ToolCallRecord(TypedDict):
    """One tool call of a run; `tool_call_error` is true if it failed or was cancelled."""

    tool_call_id: str
    tool_name: str
    tool_args: dict[str, Any]
    tool_call_error: bool | None
    result: str | None


LARGE_FIELDS = (
    "input_object", "files", "content", "messages", "tools", "output", "reasoning_content",
    "metadata", "session_state", "trace_id", "spans", "member_runs",
)  # fmt: skip
"""The fields of a run record that its summary does not have."""


@derive(
    without=(*LARGE_FIELDS, "sent_message"),
    after={"input": ("purpose",), "unpriced_tokens": ("tool_calls", "member_count")},
)
class RunSummary(RunRecord):
    """One run without its content, messages and tool calls, as `view=summary` returns it.

    `input` has at most 200 characters. `tool_calls` and `first_token_at` are null until the run has
    ended, and if they are not known.
    """

    tool_calls: int | None
    member_count: int

    first_token_at: Timestamp | None
    """The time at which the first part of an answer of its own model calls arrived."""


class RunSummaryPage(TypedDict):
    """A page of summaries of runs, across sessions."""

    data: list[RunSummary]
    meta: PageMeta


class RunPage(TypedDict):
    """A page of runs, across sessions."""

    data: list[RunRecord]
    meta: PageMeta


class FailurePage(TypedDict):
    """A page of failed runs, across sessions."""

    data: list[FailureRecord]
    meta: PageMeta


class SessionExport(TypedDict):
    """A session with all its runs, the elements of an export.

    `model_calls` are the model calls by run id, if they are requested; a run without any is
    missing.
    """

    session: SessionDetail
    runs: list[RunRecord]
    model_calls: NotRequired[dict[str, list[dict[str, Any]]]]


class RunDetails(NamedTuple):
    """The documents around the record of a run."""

    descendants: list[RunRecord]
    """The runs below it, each after its parent."""

    session_state: dict[str, Any] | None

    approvals: list[ApprovalRecord]
    """The approvals of the run and of its descendants, decided or not, oldest first."""


class FoundTurn(NamedTuple):
    """The place of a turn: a run without a parent."""

    kind: ComponentKind
    component_id: str
    session_id: str
    db_id: str

    is_newest: bool
    """True if no turn of its session began later."""

    is_only: bool
    """True if its session has no other turn."""


class CancelRecord(TypedDict):
    """The result of a cancel: `stopped` only if the run ended as CANCELLED.

    `stopped_at` and `holding` are the same as in the run record: work may continue after the end.
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


# Not frozen, for the reason of `records.sessions.SummaryRow`.
@dataclass(slots=True)
class LastRunState:
    """The columns of a run that a list of sessions shows of their newest runs."""

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
    """JSON array with the names of the work that continues after the end of the run.

    None if no work continues, or if that is not known.
    """


@dataclass(slots=True)
class RunState(LastRunState):
    """The state of a run, without its content."""

    parent_run_id: str | None
    component_type: ComponentKind
    component_id: str
    user_id: str | None
    attempt: int
    owner: str | None
    cancel_reason: str | None

    queued_at: int | None
    """When it began to wait in the queue; None if it never did."""

    queue_turn: int | None
    """Its turn in the queue (`repositories.queue`); None if it does not wait there."""

    version: str | None
    """The version of its component; None if it is not known."""

    messages_sent: int
    """Number of the messages that were sent to it."""

    @property
    def waits_for_turn(self) -> bool:
        """True while earlier runs of the session come first, so that no server may begin the run.

        The rows of the queue say so with a turn of 0 or -1 (`repositories.queue`).
        """
        return self.queue_turn is not None and self.queue_turn <= 0


@dataclass(slots=True)
class RunRow(RunState):
    """A stored run. Times are microseconds UTC, flags 0 or 1."""

    seq: int
    background: int
    created_at: int
    started_at: int | None
    late_result: int

    metrics: str | None
    """JSON object of its token counters; None until the run has ended or paused.

    A live run with a budget has the counters of its last report.
    """

    history: str | None
    """JSON array; None until the run has ended or paused."""

    input: str

    input_object: str | None
    """JSON object `input` of the request; None if it had none.

    Of the runs below the root run, only the first step of a workflow has it.
    """

    content: str | None

    tools: str | None
    """JSON array; None until the run has ended or paused."""

    messages: str | None
    """JSON array; None until the run has ended or paused."""

    metadata: str | None
    """JSON object of the request; None if it had none."""

    session_state: str | None
    """JSON object of the request; None if it had none."""

    output: str | None
    """JSON of its structured result; None if it has none, or has not ended."""

    reasoning_content: str | None

    purpose: str | None
    """`summary` or `memory` for background work; None for other runs."""

    spans: str | None
    """JSON array of the times of its parts; None until the run has ended."""

    request_id: str | None
    """The id of the request that started it; None if it is not known."""

    paused_at: int | None
    """The time of its last pause."""

    origin_run_id: str | None = None
    """The run that it repeats (`records.run_spec.Origin`)."""

    origin_kind: str | None = None
    origin_at: int | None = None

    trace: str | None = None
    """Its place in a trace (`RunSpec.trace`); None if it is not traced."""

    version_changes: str | None = None
    """JSON array of the changes of its version while it waited."""

    files: str | None = None
    """JSON array of references to its files."""


TEXT_COLUMNS = (
    "input",
    "history",
    *(name for name in LARGE_FIELDS if name in RunRow.__dataclass_fields__),
)
"""The columns with texts of any size."""


@dataclass(slots=True)
class Turn:
    """The question and the answer of a top-level run that has ended."""

    run_id: str
    seq: int
    input: str
    content: str | None


class StoredHistory(NamedTuple):
    """The history of a run: its number, and a JSON array in UTF-8 without its brackets."""

    seq: int
    text: bytes


class NewRun(NamedTuple):
    """A run to create."""

    spec: RunSpec

    owner: str | None
    """The id of the worker that executes it or will claim it; None for a queued run."""

    created_at: int

    session_name: str | None = None
    """The name for a session without a name; None for a child."""

    queue_turn: int | None = None
    """Its place in the queue (`repositories.queue`); None if it does not wait there."""


@dataclass(frozen=True, slots=True)
class RunPause:
    """The pause of a run, with its results so far as JSON texts."""

    run_id: str

    attempt: int
    """The attempt of the leg that has ended."""

    status: str
    """PAUSED, or PENDING if all that it waits for has been decided meanwhile."""

    paused_at: int
    content: str
    messages: str
    tools: str
    metrics: str
    spans: str
    model_metrics: str | None = None
    requests: str | None = None


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run: its final status (COMPLETED, ERROR or CANCELLED) and its result."""

    run_id: str

    attempt: int
    """The attempt that has ended. An attempt before the stored one is refused."""

    status: str
    content: str | None
    history: str | None
    messages: str | None
    tools: str | None

    metrics: str | None
    """JSON object of the token counters of the run, without its children."""

    error_code: str | None
    error_detail: str | None
    finished_at: int

    stopped_at: int | None
    """The time at which the work stopped; None if that is not known."""

    late_result: bool = False
    """True if a result arrived after the end and was dropped."""

    cancel_reason: str | None = None
    """Replaces the reason of the cancel request."""

    output: str | None = None
    """The structured result as JSON; None if there is none."""

    reasoning_content: str | None = None

    native_kind: str | None = None
    """The kind of runner of `native_history`; None without it."""

    native_history: str | None = None
    """The messages of the run in the JSON form of its library; None if it has none."""

    holding: str | None = None
    """JSON array of the names of the work that continues.

    None if no work continues, or if that is not known.
    """

    spans: str | None = None

    causes: str | None = None
    """JSON array of the causes of its failures (`runtime.causes`); None if it has none."""

    model: str | None = None
    """The model of its first model call; None without a call, or if the model is not known."""

    model_metrics: str | None = None
    """JSON object of the token counters of each model, if the run used several."""

    model_calls: int = 0
    """Number of its model calls."""

    first_token_at: int | None = None
    """Time of the first part of an answer of a model; None without an answer."""

    requests: str | None = None
    """JSON object that describes the requests to its models (`runtime.transcript.requests`).

    None if it has none.
    """
