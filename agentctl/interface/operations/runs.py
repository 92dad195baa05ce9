"""The operations on components, their versions, their runs, and the approvals that runs wait for: a
part of `Operations`.
"""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.interface.declarations import Path, Query, component_operation, dispatch, operation
from agentctl.interface.requests import (
    FULL_VIEW,
    MAXIMUM_LIMIT,
    CancelRequest,
    Cut,
    DatabaseId,
    DiffFilter,
    ForkRequest,
    IdempotencyKey,
    Limit,
    MessageRequest,
    OfSession,
    ResumeRequest,
    RetryRequest,
    RunFilter,
    RunRequest,
    RunView,
    StreamEvent,
    VersionFilter,
)
from agentctl.interface.requests.approvals import ApprovalFilter, ContinueRequest, Ruling
from agentctl.records.approvals import ApprovalPage, ApprovalRecord, ReceiptRecord
from agentctl.records.components import COMPONENT_LISTS, COMPONENT_RECORDS, VersionDiff, VersionPage
from agentctl.records.document import Document
from agentctl.records.items import RunViewPages, RunViews
from agentctl.records.kinds import ComponentKind
from agentctl.records.run_messages import RunMessagePage, RunMessageRecord
from agentctl.records.runs import (
    CancelRecord,
    FailurePage,
    RunCauses,
    RunPage,
    RunRecord,
    ToolCallRecord,
)
from agentctl.records.times import Timestamp

ComponentId = Annotated[str, Path("Id of the component")]
RunId = Annotated[str, Path("Id of the run")]
ApprovalId = Annotated[str, Path("Id of the approval")]

_PAGE_LAST = (..., "limit", "page", "cursor", "sort_order")
_RUN = "/{component_id}/runs/{run_id}"
_APPROVAL = "/{component_id}/approvals/{approval_id}"


class RunDeclarations:
    """The operations on runs and approvals.

    The docstring of a method is its text in the OpenAPI document.
    """

    @component_operation("create_run", "POST", "/{component_id}/runs", errors=(409, 429))
    async def create_run(
        self, kind: ComponentKind, component_id: ComponentId, request: RunRequest
    ) -> Document[RunRecord]:
        """Start a run of a component.

        Responds with server-sent events. With `stream` false it responds with the run record, after
        the run has ended or, with `background`, when it has started. If the client disconnects, the
        run is cancelled unless the server is configured otherwise; a background run and one with an
        `Idempotency-Key` continue.

        With an `Idempotency-Key` the request can be repeated for 24 hours: the same request returns
        the same run, and another request with the same key is refused.
        """

    @dispatch
    def stream_run(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> AsyncIterator[StreamEvent]:
        """Start a run and yield its events. Errors are raised before the first event."""

    @component_operation(
        "list_runs",
        "GET",
        "/{component_id}/runs",
        summaries=RunViewPages,
        without=("component_type", "component_id", "sort_by"),
        order=_PAGE_LAST,
    )
    async def list_component_runs(
        self, kind: ComponentKind, component_id: ComponentId, filter: RunFilter
    ) -> Document[RunPage]:
        """List the runs of a component.

        One page of the runs that the caller can see.
        """

    @component_operation("get_run", "GET", _RUN, summaries=RunViews)
    async def get_component_run(
        self,
        kind: ComponentKind,
        component_id: ComponentId,
        run_id: RunId,
        *,
        session_id: OfSession = None,
        form: RunView = FULL_VIEW,
    ) -> Document[RunRecord]:
        """Get a run of a component."""

    @component_operation("cancel_run", "POST", f"{_RUN}/cancel")
    async def cancel_run(
        self, kind: ComponentKind, component_id: ComponentId, run_id: RunId, request: CancelRequest
    ) -> Document[CancelRecord]:
        """Cancel a run of a component.

        Requests the cancel and waits for the run to stop. The field `cancel` is `stopped` if the
        run has stopped, `requested` if it has not stopped yet, and `already_final` if it had ended
        before.
        """

    @component_operation("resume_run", "POST", f"{_RUN}/resume")
    def resume_run(
        self, kind: ComponentKind, component_id: ComponentId, run_id: RunId, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        """Follow a run of a component.

        Responds with the stored and future events of the run after the given one, until the run
        ends. If the client disconnects, the run continues. A run that was started without `stream`
        and `background`, or that ended more than 24 hours ago, has at most two events: its content,
        if there is any, and its end.
        """

    @component_operation("follow_run", "GET", f"{_RUN}/events")
    def follow_run(
        self, kind: ComponentKind, component_id: ComponentId, run_id: RunId, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        """Read the events of a run of a component.

        The same events as those of the resume operation, for callers that may read the component
        and not run it. If the client disconnects, the run continues.
        """

    @component_operation("get_tool_call", "GET", f"{_RUN}/tools/{{tool_call_id}}")
    async def get_tool_call(
        self,
        kind: ComponentKind,
        component_id: ComponentId,
        run_id: RunId,
        tool_call_id: Annotated[str, Path("Id of the tool call")],
        *,
        session_id: OfSession = None,
    ) -> Document[ToolCallRecord]:
        """Get a tool call of a run of a component.

        The call with its whole result, once the run has ended.
        """

    @operation(
        "GET", "/runs", tag="Runs", summaries=RunViewPages, without=("sort_by",), order=_PAGE_LAST
    )
    async def get_runs(self, filter: RunFilter) -> Document[RunPage]:
        """List runs.

        One page of the runs that the caller can see, across sessions.
        """

    @operation("GET", "/runs/{run_id}", tag="Runs", summaries=RunViews)
    async def get_run(
        self, run_id: RunId, *, db_id: DatabaseId = None, form: RunView = FULL_VIEW
    ) -> Document[RunRecord]:
        """Get a run."""

    @operation("GET", "/runs/{run_id}/causes", tag="Runs")
    async def get_run_causes(
        self, run_id: RunId, *, db_id: DatabaseId = None
    ) -> Document[RunCauses]:
        """Get the causes of the failures of a run.

        The exceptions of the code of its agent and tools, and of those of the runs below it. No
        record, event or export of a run has them.
        """

    @operation(
        "GET",
        "/failures",
        tag="Runs",
        order=_PAGE_LAST,
        without=("sort_by", "status", "live", "at_work", "view", "cut"),
    )
    async def get_failures(self, filter: RunFilter) -> Document[FailurePage]:
        """List failed runs with their causes.

        One page of the failed runs that the caller can see, across sessions, each with the
        exception that ended it.
        """

    @operation("GET", "/runs/{run_id}/model-calls", tag="Runs")
    async def get_run_model_calls(
        self,
        run_id: RunId,
        *,
        db_id: DatabaseId = None,
        after: Annotated[str | None, Query("Only calls after the one with this id")] = None,
        limit: Limit = MAXIMUM_LIMIT,
    ) -> Document[RunModelCalls]:
        """List the model calls of a run.

        Each attempt with the model that answered, once the run has ended or waits for a decision.
        """

    @operation("GET", "/runs/{run_id}/model-calls/{call_id}", tag="Runs")
    async def get_run_model_call(
        self,
        run_id: RunId,
        call_id: Annotated[str, Path("Id of the call, which is that of its span")],
        *,
        db_id: DatabaseId = None,
        cut: Cut = None,
    ) -> Document[ModelCallDetail]:
        """Get a model call of a run with its messages.

        The messages are those that the model was sent, in their order, with the instructions first.
        """

    @operation("POST", "/runs/{run_id}/messages", tag="Runs", status=202, errors=(409, 429))
    async def send_message(
        self, run_id: RunId, request: MessageRequest
    ) -> Document[RunMessageRecord]:
        """Send a message to a run that works.

        The next model call of the run gets the message, after all results of the tool calls before
        it. If the run makes no further call, or takes no messages while it works, the message
        becomes the next run of the session, or is refused, as `late` says. The caller needs the
        scope that starts a run of the component.

        With an `Idempotency-Key` the request can be repeated for 24 hours: the same request returns
        the same message.
        """

    @operation("GET", "/runs/{run_id}/messages", tag="Runs")
    async def get_run_messages(
        self,
        run_id: RunId,
        *,
        after: Annotated[str | None, Query("Only messages after the one with this id")] = None,
        limit: Limit = MAXIMUM_LIMIT,
    ) -> Document[RunMessagePage]:
        """List the messages to a run.

        The messages that were sent to the run while it worked, each with its fate.
        """

    @component_operation("continue_run", "POST", f"{_RUN}/continue", errors=(409, 413, 415, 429))
    async def continue_run(
        self,
        kind: ComponentKind,
        component_id: ComponentId,
        run_id: RunId,
        request: ContinueRequest,
    ) -> Document[RunRecord]:
        """Continue a paused run of a component.

        Stores the decisions of the user of the run about approvals with the policy `user`, all or
        none. If the run still waits for others, it responds with the record of the paused run.
        Otherwise it responds with the server-sent events of what follows; with `stream` false with
        the run record, after the run has ended or paused again or, with `background`, at once. If
        the client disconnects, the run continues.

        With an `Idempotency-Key` the request can be repeated for 24 hours.
        """

    @dispatch
    def stream_continued_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ContinueRequest
    ) -> AsyncIterator[StreamEvent]:
        """Continue a paused run and yield the events that follow.

        There are none if the run still waits for other decisions.
        """

    @component_operation("retry_run", "POST", f"{_RUN}/retry", errors=(409, 429))
    async def retry_run(
        self, kind: ComponentKind, component_id: ComponentId, run_id: RunId, request: RetryRequest
    ) -> Document[RunRecord]:
        """Retry a run of a component that has ended.

        Starts a new run in the same session with the same input. It begins with the finished part
        of the first one: answers and tool calls with their results. An agent in code and a
        broadcast work from the beginning, a workflow from its first step that did not complete.

        If effects may be repeated, it responds with 409 and the plan; the same request with
        `confirm` of the plan starts the run. The response is that of a start.
        """

    @dispatch
    def stream_retried_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: RetryRequest
    ) -> AsyncIterator[StreamEvent]:
        """Retry a run and yield the events of the new one."""

    @component_operation("fork_run", "POST", f"{_RUN}/fork", errors=(409, 413, 429))
    async def fork_run(
        self, kind: ComponentKind, component_id: ComponentId, run_id: RunId, request: ForkRequest
    ) -> Document[RunRecord]:
        """Fork a run of a component that has ended.

        Starts a new run whose conversation begins with the first `at` messages of the run, with
        another message or another component, in a new session or in that of the run. The caller
        needs the scope that starts a run of the component that goes on.

        If effects may be repeated, it responds with 409 and the plan; the same request with
        `confirm` of the plan starts the run. The response is that of a start.
        """

    @dispatch
    def stream_forked_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ForkRequest
    ) -> AsyncIterator[StreamEvent]:
        """Fork a run and yield the events of the new one."""

    @operation("GET", "/approvals", tag="Approvals", without=("sort_by",), order=_PAGE_LAST)
    async def get_approvals(self, filter: ApprovalFilter) -> Document[ApprovalPage]:
        """List approvals.

        One page of the approvals that the caller can see: those of all users for components about
        whose approvals the caller decides, and its own.
        """

    @component_operation("get_approval", "GET", _APPROVAL)
    async def get_approval(
        self, kind: ComponentKind, component_id: ComponentId, approval_id: ApprovalId
    ) -> Document[ApprovalRecord]:
        """Get an approval of a component."""

    @component_operation("get_receipt", "GET", f"{_APPROVAL}/receipt", errors=(409,))
    async def get_receipt(
        self, kind: ComponentKind, component_id: ComponentId, approval_id: ApprovalId
    ) -> Document[ReceiptRecord]:
        """Get the receipt of an approval.

        A signed statement of who decided, about which call, and what followed: others can verify it
        without this server. A pending approval is a conflict.
        """

    @component_operation(
        "decide_approval",
        "POST",
        f"{_APPROVAL}/decide",
        errors=(409,),
        without=("approval_id", "tool_call_id"),
    )
    async def decide_approval(
        self,
        kind: ComponentKind,
        component_id: ComponentId,
        approval_id: ApprovalId,
        ruling: Ruling,
        idempotency_key: IdempotencyKey = None,
    ) -> Document[ApprovalRecord]:
        """Decide about an approval of a component.

        The decision counts for the call that was shown: `arguments_hash` names it. An approval is
        decided once. The last decision that a run waits for lets the run continue.

        With an `Idempotency-Key` the request can be repeated for 24 hours.
        """


class ReferenceRecord(TypedDict):
    """A range of stored messages: `end` is the number after the last one."""

    source: Literal["history", "run", "added"]
    first: int
    end: int


class ModelCallRecord(TypedDict):
    """One attempt at a call of a model.

    `id` is that of its span. `model` is the id of the model in the configuration, or the name that
    a library reports. `response_model` and `response_id` are what the provider has reported about
    its answer. `attempt` counts the attempts at this call with this model from 1. `message_count`
    and `characters` are the size of the request. `tools` is a hash of the tools with their schemas.
    `cost` is in US dollars, and null if the price or the use of a cache is not known.
    `omissions` are the parts of the conversation that are left out. `references` are the messages
    of the request in their order, as ranges of the numbers of stored messages: those of the earlier
    runs together (`history`), of the run, and of texts that nothing else stores (`added`). Unknown
    members are null.
    """

    id: str
    model: str | None
    provider: str | None
    requested_model: str | None
    response_model: str | None
    response_id: str | None
    attempt: int
    is_fallback: bool
    status: Literal["completed", "failed", "cancelled"] | None
    error_code: str | None
    finish_reason: str | None
    started_at: Timestamp | None
    first_token_at: Timestamp | None
    finished_at: Timestamp | None
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None
    message_count: int | None
    characters: int | None
    tools: str | None
    omissions: list[dict[str, Any]]
    references: list[ReferenceRecord]


class RunModelCalls(TypedDict):
    """The model calls of a run in their order; `total` counts all of them."""

    run_id: str
    model_calls: list[ModelCallRecord]
    total: int


class SentMessage(TypedDict):
    """A message that a model was sent.

    `source` is `history` for a message of an earlier run of the session, `run` for one of the run,
    and `added` for any other text. `missing` is `deleted` if the run that has the message does not
    exist any more, and `too_large` if the text was not kept; then `content` is null. A message with
    `native` was sent in the form of its provider, with its thinking if it has any.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    tool_name: NotRequired[str]
    source: Literal["history", "run", "added"]
    native: NotRequired[Literal[True]]
    missing: NotRequired[Literal["deleted", "too_large"]]
    truncated: NotRequired[dict[str, int]]


class ModelCallDetail(ModelCallRecord):
    """A model call with the messages that it was sent, in their order.

    `state` is `unknown` if the request was not recorded, `incomplete` if some texts are missing.
    """

    run_id: str
    state: Literal["complete", "incomplete", "unknown"]
    messages: list[SentMessage]


class ComponentDeclarations:
    """The operations on components.

    The docstring of a method is its text in the OpenAPI document.
    """

    @component_operation("list", "GET", records=COMPONENT_LISTS)
    async def get_components(self, kind: ComponentKind) -> Document[list[Any]]:
        """List components.

        All configured components that the caller can read.
        """

    @component_operation("get", "GET", "/{component_id}", records=COMPONENT_RECORDS)
    async def get_component(self, kind: ComponentKind, component_id: ComponentId) -> Document[Any]:
        """Get a component."""

    @component_operation("get_versions", "GET", "/{component_id}/versions")
    async def get_versions(
        self, kind: ComponentKind, component_id: ComponentId, filter: VersionFilter
    ) -> Document[VersionPage]:
        """List the versions of a component.

        The configurations with which servers have started, newest first.
        """

    @component_operation("get_version_diff", "GET", "/{component_id}/versions/diff")
    async def get_version_diff(
        self, kind: ComponentKind, component_id: ComponentId, filter: DiffFilter
    ) -> Document[VersionDiff]:
        """Compare two versions of a component.

        By default the two newest ones.
        """
