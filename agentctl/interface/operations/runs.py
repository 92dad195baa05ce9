"""The operations on runs; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.interface.bodies import (
    ContinueBody,
    ForkBody,
    MessageBody,
    ResumeBody,
    RetryBody,
    RunBody,
)
from agentctl.interface.declarations import (
    Body,
    Family,
    Path,
    Query,
    component_operation,
    operation,
    stream_of,
)
from agentctl.interface.operations.components import ComponentId
from agentctl.interface.requests import (
    FULL_VIEW,
    MAXIMUM_LIMIT,
    PAGE_LAST,
    CancelRequest,
    Cut,
    DatabaseId,
    ForkRequest,
    Limit,
    MessageRequest,
    OfSession,
    ResumeRequest,
    RetryRequest,
    RunFilter,
    RunRequest,
    RunView,
    StreamEvent,
)
from agentctl.interface.requests.approvals import ContinueRequest
from agentctl.interface.requirements import (
    READS_COMPONENT,
    RUNS_COMPONENT,
    Authenticated,
    NeedsScope,
)
from agentctl.interface.responses import (
    CONTINUE_RESPONSES,
    EVENT_STREAM_RESPONSES,
    REPEAT_RESPONSES,
    RUN_RESPONSES,
)
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

RunId = Annotated[str, Path("Id of the run", "run")]

_RUN = "/{component_id}/runs/{run_id}"


class RunsFamily(Family):
    """The operations on runs."""

    @component_operation(
        "create_run",
        "POST",
        "/{component_id}/runs",
        needs=RUNS_COMPONENT,
        body=Body(RunBody, form=True),
        errors=(409, 429),
        responses=RUN_RESPONSES,
    )
    async def create(
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

    @stream_of(create)
    def stream(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> AsyncIterator[StreamEvent]:
        """Start a run and yield its events. Errors are raised before the first event."""

    @component_operation(
        "list_runs",
        "GET",
        "/{component_id}/runs",
        needs=READS_COMPONENT,
        summaries=RunViewPages,
        without=("component_type", "component_id", "sort_by"),
        order=PAGE_LAST,
    )
    async def list_of_component(
        self, kind: ComponentKind, component_id: ComponentId, filter: RunFilter
    ) -> Document[RunPage]:
        """List the runs of a component.

        One page of the runs that the caller can see.
        """

    @component_operation("get_run", "GET", _RUN, needs=READS_COMPONENT, summaries=RunViews)
    async def get_of_component(
        self,
        kind: ComponentKind,
        component_id: ComponentId,
        run_id: RunId,
        *,
        session_id: OfSession = None,
        form: RunView = FULL_VIEW,
    ) -> Document[RunRecord]:
        """Get a run of a component."""

    @component_operation("cancel_run", "POST", f"{_RUN}/cancel", needs=RUNS_COMPONENT)
    async def cancel(
        self, kind: ComponentKind, component_id: ComponentId, run_id: RunId, request: CancelRequest
    ) -> Document[CancelRecord]:
        """Cancel a run of a component.

        Requests the cancel and waits for the run to stop. The field `cancel` is `stopped` if the
        run has stopped, `requested` if it has not stopped yet, and `already_final` if it had ended
        before.
        """

    @component_operation(
        "resume_run",
        "POST",
        f"{_RUN}/resume",
        needs=RUNS_COMPONENT,
        body=Body(ResumeBody, form=True, optional=True),
        responses=EVENT_STREAM_RESPONSES,
        is_read=True,
    )
    def resume(
        self, kind: ComponentKind, component_id: ComponentId, run_id: RunId, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        """Follow a run of a component.

        Responds with the stored and future events of the run after the given one, until the run
        ends. If the client disconnects, the run continues. A run that was started without `stream`
        and `background`, or that ended more than 24 hours ago, has at most two events: its content,
        if there is any, and its end.
        """

    @component_operation(
        "follow_run",
        "GET",
        f"{_RUN}/events",
        needs=READS_COMPONENT,
        responses=EVENT_STREAM_RESPONSES,
    )
    def follow(
        self, kind: ComponentKind, component_id: ComponentId, run_id: RunId, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        """Read the events of a run of a component.

        The same events as the resume operation, for callers that may read the component and not run
        it. If the client disconnects, the run continues.
        """

    @component_operation(
        "get_tool_call", "GET", f"{_RUN}/tools/{{tool_call_id}}", needs=READS_COMPONENT
    )
    async def get_tool_call(
        self,
        kind: ComponentKind,
        component_id: ComponentId,
        run_id: RunId,
        tool_call_id: Annotated[str, Path("Id of the tool call", "tool_call")],
        *,
        session_id: OfSession = None,
    ) -> Document[ToolCallRecord]:
        """Get a tool call of a run of a component.

        The call with its whole result, once the run has ended.
        """

    @operation(
        "get_runs",
        "GET",
        "/runs",
        needs=NeedsScope("sessions", "read"),
        tag="Runs",
        summaries=RunViewPages,
        without=("sort_by",),
        order=PAGE_LAST,
    )
    async def list(self, filter: RunFilter) -> Document[RunPage]:
        """List runs.

        One page of the runs that the caller can see, across sessions.
        """

    @operation(
        "get_run",
        "GET",
        "/runs/{run_id}",
        needs=NeedsScope("sessions", "read"),
        tag="Runs",
        summaries=RunViews,
    )
    async def get(
        self, run_id: RunId, *, db_id: DatabaseId = None, form: RunView = FULL_VIEW
    ) -> Document[RunRecord]:
        """Get a run."""

    @operation(
        "get_run_causes",
        "GET",
        "/runs/{run_id}/causes",
        needs=NeedsScope("runs", "debug"),
        tag="Runs",
    )
    async def get_causes(self, run_id: RunId, *, db_id: DatabaseId = None) -> Document[RunCauses]:
        """Get the causes of the failures of a run.

        The exceptions in the code of its agent and tools, and in the runs below it. No record,
        event or export of a run has them.
        """

    @operation(
        "get_failures",
        "GET",
        "/failures",
        needs=NeedsScope("runs", "debug"),
        tag="Runs",
        order=PAGE_LAST,
        without=("sort_by", "status", "live", "at_work", "view", "cut"),
    )
    async def list_failures(self, filter: RunFilter) -> Document[FailurePage]:
        """List failed runs with their causes.

        One page of the failed runs that the caller can see, across sessions, each with the
        exception that ended it.
        """

    @operation(
        "get_run_model_calls",
        "GET",
        "/runs/{run_id}/model-calls",
        needs=NeedsScope("sessions", "read"),
        tag="Runs",
    )
    async def list_model_calls(
        self,
        run_id: RunId,
        *,
        db_id: DatabaseId = None,
        after: Annotated[str | None, Query("Only calls after the call with this id")] = None,
        limit: Limit = MAXIMUM_LIMIT,
    ) -> Document[RunModelCalls]:
        """List the model calls of a run.

        Each attempt with the model that answered, once the run has ended or waits for a decision.
        """

    @operation(
        "get_run_model_call",
        "GET",
        "/runs/{run_id}/model-calls/{call_id}",
        needs=NeedsScope("sessions", "read"),
        tag="Runs",
    )
    async def get_model_call(
        self,
        run_id: RunId,
        call_id: Annotated[
            str, Path("Id of the call, the same as the id of its span", "model_call")
        ],
        *,
        db_id: DatabaseId = None,
        cut: Cut = None,
    ) -> Document[ModelCallDetail]:
        """Get a model call of a run with its messages.

        The messages are those that the model was sent, in their order, with the instructions first.
        """

    # And the scope that starts a run of its component (`service.runs.run_messages`).
    @operation(
        "send_message",
        "POST",
        "/runs/{run_id}/messages",
        needs=Authenticated(),
        tag="Runs",
        body=Body(MessageBody),
        status=202,
        errors=(409, 429),
        finds_run=True,
    )
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

    @operation(
        "get_run_messages",
        "GET",
        "/runs/{run_id}/messages",
        needs=NeedsScope("sessions", "read"),
        tag="Runs",
    )
    async def list_messages(
        self,
        run_id: RunId,
        *,
        after: Annotated[str | None, Query("Only messages after the message with this id")] = None,
        limit: Limit = MAXIMUM_LIMIT,
    ) -> Document[RunMessagePage]:
        """List the messages to a run.

        The messages that were sent to the run while it worked, each with its fate.
        """

    @component_operation(
        "continue_run",
        "POST",
        f"{_RUN}/continue",
        needs=RUNS_COMPONENT,
        body=Body(ContinueBody, optional=True),
        errors=(409, 413, 415, 429),
        responses=CONTINUE_RESPONSES,
    )
    async def continue_run(
        self,
        kind: ComponentKind,
        component_id: ComponentId,
        run_id: RunId,
        request: ContinueRequest,
    ) -> Document[RunRecord]:
        """Continue a paused run of a component.

        Stores the decisions of the user of the run about approvals with the policy `user`, all or
        none. If the run is still waiting for other decisions, it responds with the record of the
        paused run. Otherwise it responds with the server-sent events of what follows; with `stream`
        false with the run record, after the run has ended or paused again or, with `background`, at
        once. If the client disconnects, the run continues.

        With an `Idempotency-Key` the request can be repeated for 24 hours.
        """

    @stream_of(continue_run)
    def stream_continued(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ContinueRequest
    ) -> AsyncIterator[StreamEvent]:
        """Continue a paused run and yield the events that follow.

        There are no events if the run is still waiting for other decisions.
        """

    @component_operation(
        "retry_run",
        "POST",
        f"{_RUN}/retry",
        needs=RUNS_COMPONENT,
        body=Body(RetryBody, optional=True),
        errors=(409, 429),
        responses=REPEAT_RESPONSES,
    )
    async def retry(
        self, kind: ComponentKind, component_id: ComponentId, run_id: RunId, request: RetryRequest
    ) -> Document[RunRecord]:
        """Retry a run of a component that has ended.

        Starts a new run in the same session with the same input. It begins with the finished part
        of the original run: answers and tool calls with their results. An agent in code and a
        broadcast work from the beginning, a workflow from its first step that did not complete.

        If effects may be repeated, it responds with 409 and the plan; the same request with
        `confirm` of the plan starts the run. The response is the same as for a start.
        """

    @stream_of(retry)
    def stream_retried(
        self, kind: ComponentKind, component_id: str, run_id: str, request: RetryRequest
    ) -> AsyncIterator[StreamEvent]:
        """Retry a run and yield the events of the new one."""

    @component_operation(
        "fork_run",
        "POST",
        f"{_RUN}/fork",
        # And the scope that starts a run of the component that continues (`service.runs.repeats`).
        needs=READS_COMPONENT,
        body=Body(ForkBody),
        errors=(409, 413, 429),
        responses=REPEAT_RESPONSES,
    )
    async def fork(
        self, kind: ComponentKind, component_id: ComponentId, run_id: RunId, request: ForkRequest
    ) -> Document[RunRecord]:
        """Fork a run of a component that has ended.

        Starts a new run whose conversation begins with the first `at` messages of the run, with
        another message or another component, in a new session or in the session of the run. The
        caller needs the scope that starts a run of the component that continues.

        If effects may be repeated, it responds with 409 and the plan; the same request with
        `confirm` of the plan starts the run. The response is the same as for a start.
        """

    @stream_of(fork)
    def stream_forked(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ForkRequest
    ) -> AsyncIterator[StreamEvent]:
        """Fork a run and yield the events of the new one."""


class ReferenceRecord(TypedDict):
    """A range of stored messages: `end` is the number after the last one."""

    source: Literal["history", "run", "added"]
    first: int
    end: int


class ModelCallRecord(TypedDict):
    """One attempt at a call of a model.

    `id` is the id of its span. `model` is the id of the model in the configuration, or the name
    that a library reports. `response_model` and `response_id` are what the provider has reported
    about its answer. `attempt` counts the attempts at this call with this model from 1.
    `message_count` and `characters` are the size of the request. `tools` is a hash of the tools
    with their schemas. `cost` is in US dollars, and null if the price or the use of a cache is not
    known. `omissions` are the parts of the conversation that are left out. `references` are the
    messages of the request in their order, as ranges of the numbers of stored messages: those of
    the earlier runs together (`history`), of the run, and of texts that nothing else stores
    (`added`). Unknown members are null.
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
