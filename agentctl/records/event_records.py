"""The events of runs as records, for the OpenAPI document and for clients.

The names in the field `event` are those of `agentctl.records.events`, and
`agentctl.runs.log.event_rows` writes the fields (docs/api.md "Event streams").
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.records.approvals import ApprovalKind, ApprovalStatus
from agentctl.records.files import RunFileRecord
from agentctl.records.items import Item, OmissionRecord
from agentctl.records.kinds import ApprovalPolicy
from agentctl.records.run_spec import OriginKind
from agentctl.records.runs import RunErrorRecord, ToolCallRecord, VersionChange
from agentctl.records.times import Timestamp


class EventFields(TypedDict):
    """The fields of every event: its time, its run, and the id and the name of one component.

    `created_at` is in whole seconds. `parent_run_id` is in the events of a member or a step.
    """

    created_at: int
    at: Timestamp
    run_id: str
    session_id: str
    parent_run_id: NotRequired[str]
    agent_id: NotRequired[str]
    agent_name: NotRequired[str]
    team_id: NotRequired[str]
    team_name: NotRequired[str]
    workflow_id: NotRequired[str]
    workflow_name: NotRequired[str]


class QueuedEvent(EventFields):
    """The run waits for its turn; its place in the queue of its session counts from 1."""

    event: Literal["RunQueued", "TeamRunQueued", "WorkflowQueued"]
    queue_position: int
    queued_at: Timestamp


class StartedEvent(EventFields):
    """The run begins. A retry or a fork names its origin."""

    event: Literal["RunStarted", "TeamRunStarted", "WorkflowStarted"]
    origin_run_id: NotRequired[str]
    origin_kind: NotRequired[OriginKind]
    origin_at: NotRequired[int | None]
    version: NotRequired[str]
    version_change: NotRequired[VersionChange]


class ContentEvent(EventFields):
    """The next part of the answer. Some libraries name the node and the message that it is from."""

    event: Literal["RunContent", "TeamRunContent", "WorkflowContent"]
    content: str
    content_type: Literal["str"]
    node: NotRequired[str]
    message_id: NotRequired[str]
    member_run_id: NotRequired[str]


class ThinkingEvent(EventFields):
    """The next part of the thinking."""

    event: Literal["ReasoningContentDelta", "TeamReasoningContentDelta"]
    reasoning_content: str


class ProgressEvent(EventFields):
    """Progress that code reports: a text, a fraction from 0 to 1, or both."""

    event: Literal["RunProgress", "TeamRunProgress", "WorkflowProgress"]
    text: str | None
    fraction: float | None


class ToolCallStartedEvent(EventFields):
    """A tool call begins."""

    event: Literal["ToolCallStarted", "TeamToolCallStarted"]
    tool: ToolCallRecord


class ToolCallCompletedEvent(EventFields):
    """A tool call has ended; `tool_call_error` shows a failure."""

    event: Literal["ToolCallCompleted", "TeamToolCallCompleted"]
    tool: ToolCallRecord


class CompactedEvent(EventFields):
    """A model call leaves out messages (docs/models.md "Context window").

    `estimated_tokens` is null for stored data that is damaged, which no call of the run gets.
    `summary` is that of answers of the run, with the first call that has it.
    """

    event: Literal["ContextCompacted", "TeamContextCompacted"]
    omissions: list[OmissionRecord]
    estimated_tokens: int | None
    window: int | None
    summary: NotRequired[str | None]


class FileSavedEvent(EventFields):
    """The code of the run has saved a file."""

    event: Literal["FileSaved", "TeamFileSaved"]
    file: RunFileRecord


class MessageDeliveredEvent(EventFields):
    """A message that was sent to the run while it works has become a part of it.

    `model_call_id` is the model call that gets it; null if the code of the agent has taken it.
    """

    event: Literal["MessageDelivered", "TeamMessageDelivered"]
    message_id: str
    content: str
    model_call_id: str | None


class BudgetWarningEvent(EventFields):
    """A budget has reached its warning level (docs/budgets.md). Sent once per period."""

    event: Literal["BudgetWarning", "TeamBudgetWarning"]
    budget_id: str
    period: Literal["day", "month"]
    unit: Literal["tokens", "dollars"]
    limit: float
    warn_at: float


class StepStartedEvent(EventFields):
    """A step of a workflow begins; `step_index` counts from 0."""

    event: Literal["StepStarted"]
    step_name: str
    step_index: int


class StepCompletedEvent(EventFields):
    """A step of a workflow has ended, with its output."""

    event: Literal["StepCompleted"]
    step_name: str
    step_index: int
    content: str


class AskedApproval(TypedDict):
    """An approval that a run waits for, in the event of the pause."""

    approval_id: str
    kind: ApprovalKind
    status: ApprovalStatus
    policy: ApprovalPolicy
    tool_call_id: str
    tool_name: str
    arguments: dict[str, Any]
    arguments_hash: str
    question: str | None
    schema: dict[str, Any] | None
    expires_at: Timestamp | None


class DecidedApproval(TypedDict):
    """A decided approval, in the event of the next leg."""

    approval_id: str
    kind: ApprovalKind
    status: ApprovalStatus
    tool_call_id: str
    tool_name: str
    arguments: dict[str, Any]
    created_at: Timestamp | None
    decided_at: Timestamp | None
    decided_by: str | None
    note: str | None


class PausedEvent(EventFields):
    """The run waits for decisions: its own; none if only a member waits. It ends a stream."""

    event: Literal["RunPaused", "TeamRunPaused", "WorkflowPaused"]
    approvals: list[AskedApproval]


class ContinuedEvent(EventFields):
    """The next leg of the run begins, with the content so far and the decisions."""

    event: Literal["RunContinued", "TeamRunContinued", "WorkflowContinued"]
    attempt: int
    content: str
    approvals: list[DecidedApproval]
    version: NotRequired[str]
    version_change: NotRequired[VersionChange]


class CompletedEvent(EventFields):
    """The run has completed, with its whole content and its token counters."""

    event: Literal["RunCompleted", "TeamRunCompleted", "WorkflowCompleted"]
    content: str
    metrics: dict[str, Any]
    finish_reason: NotRequired[str]


class CancelledEvent(EventFields):
    """The run was cancelled, with its content so far."""

    event: Literal["RunCancelled", "TeamRunCancelled", "WorkflowCancelled"]
    content: str
    reason: str | None


class FailedEvent(EventFields):
    """The run has failed, with its content so far."""

    event: Literal["RunError", "TeamRunError", "WorkflowError"]
    content: str
    error: RunErrorRecord


RunEventRecord = (
    QueuedEvent
    | StartedEvent
    | ContentEvent
    | ThinkingEvent
    | ProgressEvent
    | ToolCallStartedEvent
    | ToolCallCompletedEvent
    | CompactedEvent
    | FileSavedEvent
    | MessageDeliveredEvent
    | BudgetWarningEvent
    | StepStartedEvent
    | StepCompletedEvent
    | PausedEvent
    | ContinuedEvent
    | CompletedEvent
    | CancelledEvent
    | FailedEvent
)
"""The data of an event of a stream."""


class ItemChange(TypedDict):
    """A change of the items of a run.

    Without `position` the fields of the run have changed, which are `run`. Otherwise the item in
    this place is `item`, or the text `added` was added to it.
    """

    run_id: str
    run: NotRequired[dict[str, Any]]
    position: NotRequired[int]
    added: NotRequired[str]
    item: NotRequired[Item]


class ItemsChangedEvent(TypedDict):
    """The changes of items that an event causes, with `view=items`."""

    changes: list[ItemChange]
