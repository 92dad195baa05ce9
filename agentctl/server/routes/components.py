"""Agents, teams and workflows with their runs: the same nine operations for each kind.

Each endpoint is written once and takes the kind as its first argument. `_build_family` declares
the operations of one kind, with the operation ids and texts of that kind.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from starlette.responses import Response

from agentctl.errors import BadRequest, TooLarge, UnsupportedMediaType, ValidationFailed
from agentctl.records.components import AgentRecord, TeamRecord, WorkflowRecord
from agentctl.records.ids import IDEMPOTENCY_KEY
from agentctl.records.items import AnyRun, AnyRunPage
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.records.runs import (
    CancelRecord,
    RunRecord,
    ToolCallRecord,
)
from agentctl.requests import (
    BEFORE_FIRST_EVENT,
    DEFAULT_CANCEL_WAIT,
    DEFAULT_LIMIT,
    MAXIMUM_CANCEL_WAIT,
    MAXIMUM_EVENT_NUMBER,
    MAXIMUM_REASON_LENGTH,
    CancelRequest,
    Page,
    ResumeRequest,
    RunFilter,
    RunView,
)
from agentctl.runs.item_stream import stream_items
from agentctl.server.answers import (
    EventStreamResponse,
    cancel_on_disconnect,
    document_response,
    wait_for_first_events,
)
from agentctl.server.bodies import RequestBody
from agentctl.server.openapi.responses import EVENT_STREAM_RESPONSES, RUN_RESPONSES
from agentctl.server.parameters import Header, Path, Query
from agentctl.server.requests import ResumeBody, RunBody, build_run_request
from agentctl.server.routes.declared import (
    AfterCursor,
    CutQuery,
    DatabaseId,
    IdPrefix,
    Limit,
    PageNumber,
    RunId,
    SortOrder,
    UserId,
    ViewQuery,
)
from agentctl.server.routes.runs import (
    CreatedAfter,
    CreatedBefore,
    LiveQuery,
    SessionIdQuery,
    StatusQuery,
)
from agentctl.server.routing import Endpoint, Operation
from agentctl.server.state import Call

_RECORDS: dict[ComponentKind, Any] = {
    "agent": AgentRecord,
    "team": TeamRecord,
    "workflow": WorkflowRecord,
}
_LISTS: dict[ComponentKind, Any] = {
    "agent": list[AgentRecord],
    "team": list[TeamRecord],
    "workflow": list[WorkflowRecord],
}
T = TypeVar("T")

ComponentPath = Annotated[str, Path("Id of the component")]
SessionOfRun = Annotated[
    str | None, Query("Session of the run; required unless the caller is an administrator")
]

LastEventIndex = Annotated[
    int | None,
    Query(
        "Number of the last received event; without it the stream starts at the first event",
        ge=BEFORE_FIRST_EVENT,
        le=MAXIMUM_EVENT_NUMBER,
    ),
]
LastEventId = Annotated[
    int | None,
    Header(
        "The same as `last_event_index`, as browsers send it",
        alias="Last-Event-ID",
        ge=BEFORE_FIRST_EVENT,
        le=MAXIMUM_EVENT_NUMBER,
    ),
]

EventsView = Annotated[
    Literal["events", "items"],
    Query("`items` has, instead of the events, the changes of the items that they cause"),
]

_RUN = RequestBody(RunBody, form=True)
_RESUME = RequestBody(ResumeBody, form=True, optional=True)


async def list_components(kind: ComponentKind, call: Call) -> Response:
    """Handle `GET /agents` and the same of the other kinds."""
    return document_response(await call.operations.get_components(kind))


async def get_component(kind: ComponentKind, call: Call, component_id: ComponentPath) -> Response:
    """Handle `GET /agents/{agent_id}` and the same of the other kinds."""
    return document_response(await call.operations.get_component(kind, component_id))


async def create_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentPath,
    idempotency_key: Annotated[
        str | None,
        Header(
            "A unique name of this request; a repeated request with the same key returns the same"
            " run",
            alias="Idempotency-Key",
            pattern=IDEMPOTENCY_KEY,
        ),
    ] = None,
) -> Response:
    """Handle `POST /agents/{agent_id}/runs` and the same of the other kinds."""
    operations = call.operations
    operations.require_component(kind, component_id)
    body = await _RUN.read(call)
    request = build_run_request(body, idempotency_key)
    if body.get("stream", True):
        events = operations.stream_run_portions(kind, component_id, request)
        return EventStreamResponse(await wait_for_first_events(call.receive, events), events)
    run = await cancel_on_disconnect(
        call.receive, operations.create_run(kind, component_id, request)
    )
    return document_response(run, 202 if request.background else 200)


async def list_runs(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentPath,
    status: StatusQuery = None,
    session_id: SessionIdQuery = None,
    user_id: UserId = None,
    db_id: DatabaseId = None,
    live: LiveQuery = False,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    id_prefix: IdPrefix = None,
    view: ViewQuery = "full",
    cut: CutQuery = None,
    limit: Limit = DEFAULT_LIMIT,
    page: PageNumber = 1,
    cursor: AfterCursor = None,
    sort_order: SortOrder = "desc",
) -> Response:
    """Handle `GET /agents/{agent_id}/runs` and the same of the other kinds."""
    wanted = RunFilter(
        status=status,
        session_id=session_id,
        user_id=user_id,
        db_id=db_id,
        page=Page(limit, page, cursor, sort_order=sort_order),
        live=live,
        created_after=created_after,
        created_before=created_before,
        id_prefix=id_prefix,
        form=RunView(view, cut),
    )
    return document_response(await call.operations.list_component_runs(kind, component_id, wanted))


async def get_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentPath,
    run_id: RunId,
    session_id: SessionIdQuery = None,
    view: ViewQuery = "full",
    cut: CutQuery = None,
) -> Response:
    """Handle `GET /agents/{agent_id}/runs/{run_id}` and the same of the other kinds."""
    return document_response(
        await call.operations.get_component_run(
            kind, component_id, run_id, session_id=session_id, form=RunView(view, cut)
        )
    )


async def cancel_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentPath,
    run_id: RunId,
    session_id: SessionOfRun = None,
    wait: Annotated[
        float, Query("Seconds to wait for the run to stop", ge=0, le=MAXIMUM_CANCEL_WAIT)
    ] = DEFAULT_CANCEL_WAIT,
    reason: Annotated[
        str | None, Query("Reason to record with the run", max_length=MAXIMUM_REASON_LENGTH)
    ] = None,
) -> Response:
    """Handle `POST /agents/{agent_id}/runs/{run_id}/cancel` and the same of the other kinds."""
    request = CancelRequest(session_id, wait, reason)
    return document_response(await call.operations.cancel_run(kind, component_id, run_id, request))


async def resume_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentPath,
    run_id: RunId,
    last_event_index: LastEventIndex = None,
    session_id: SessionOfRun = None,
    last_event_id: LastEventId = None,
    view: EventsView = "events",
) -> Response:
    """Handle `POST /agents/{agent_id}/runs/{run_id}/resume` and the same of the other kinds."""
    operations = call.operations
    try:
        body = await _RESUME.read(call)
    except (BadRequest, TooLarge, UnsupportedMediaType):
        await operations.require_run(kind, component_id, run_id, session_id)
        raise
    indexes = {last_event_index, last_event_id, body.get("last_event_index")}
    sessions = {session_id, body.get("session_id")}
    after = _single_value("last_event_index", indexes)
    request = _build_resume(_single_value("session_id", sessions), after, view)
    events = await operations.open_resumed_stream(kind, component_id, run_id, request)
    return EventStreamResponse(None, events if view == "events" else stream_items(events, after))


async def follow_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentPath,
    run_id: RunId,
    last_event_index: LastEventIndex = None,
    session_id: SessionIdQuery = None,
    last_event_id: LastEventId = None,
    view: EventsView = "events",
) -> Response:
    """Handle `GET /agents/{agent_id}/runs/{run_id}/events` and the same of the other kinds."""
    after = _single_value("last_event_index", {last_event_index, last_event_id})
    request = _build_resume(session_id, after, view)
    events = await call.operations.open_followed_stream(kind, component_id, run_id, request)
    return EventStreamResponse(None, events if view == "events" else stream_items(events, after))


def _build_resume(session_id: str | None, after: int | None, view: str) -> ResumeRequest:
    if after is None or view == "items":  # items are built from all events of a run
        after = BEFORE_FIRST_EVENT
    return ResumeRequest(session_id, after)


async def get_tool_call(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentPath,
    run_id: RunId,
    tool_call_id: Annotated[str, Path("Id of the tool call")],
    session_id: SessionIdQuery = None,
) -> Response:
    """Handle `GET /agents/{agent_id}/runs/{run_id}/tools/{tool_call_id}` and the same."""
    return document_response(
        await call.operations.get_tool_call(
            kind, component_id, run_id, tool_call_id, session_id=session_id
        )
    )


def _single_value(name: str, given: set[T | None]) -> T | None:
    """Return the only value that is not None.

    Raises:
        ValidationFailed: there are several values.
    """
    first, *others = given - {None} or {None}
    if others:
        raise ValidationFailed(f"{name} is given with different values")
    return first


def build_operations() -> list[Operation]:
    """Return the operations of the three kinds."""
    return [operation for kind in KINDS for operation in _build_family(kind)]


def _build_family(kind: ComponentKind) -> list[Operation]:
    names, ids = KINDS[kind], operation_ids(kind)
    a_component = f"an {kind}" if kind == "agent" else f"a {kind}"

    def build(
        endpoint: Endpoint, name: str, summary: str, text: str = "", **more: Any
    ) -> Operation:
        return Operation(
            partial(endpoint, kind),
            name=name,
            tag=names.tag,
            summary=summary,
            description=text,
            path_names={names.id_field: "component_id"} if name != ids.list else None,
            **more,
        )

    return [
        build(
            list_components,
            ids.list,
            f"List {kind}s",
            f"All configured {kind}s that the caller can read.",
            result=_LISTS[kind],
        ),
        build(get_component, ids.get, f"Get {a_component}", result=_RECORDS[kind]),
        build(
            create_run,
            ids.create_run,
            f"Start a run of {a_component}",
            _CREATE_RUN,
            result=RunRecord,
            errors=(409, 413, 415, 429),
            body=_RUN,
            responses=RUN_RESPONSES,
        ),
        build(
            list_runs,
            ids.list_runs,
            f"List the runs of {a_component}",
            "One page of the runs that the caller can see.",
            result=AnyRunPage,
        ),
        build(get_run, ids.get_run, f"Get a run of {a_component}", result=AnyRun),
        build(
            cancel_run,
            ids.cancel_run,
            f"Cancel a run of {a_component}",
            _CANCEL_RUN,
            result=CancelRecord,
        ),
        build(
            resume_run,
            ids.resume_run,
            f"Follow a run of {a_component}",
            _RESUME_RUN,
            errors=(413, 415),
            body=_RESUME,
            responses=EVENT_STREAM_RESPONSES,
        ),
        build(
            follow_run,
            ids.follow_run,
            f"Read the events of a run of {a_component}",
            _FOLLOW_RUN,
            responses=EVENT_STREAM_RESPONSES,
        ),
        build(
            get_tool_call,
            ids.get_tool_call,
            f"Get a tool call of a run of {a_component}",
            "The call with its whole result, once the run has ended.",
            result=ToolCallRecord,
        ),
    ]


_CREATE_RUN = """\
Responds with server-sent events. With `stream` false it responds with the run record, after the
run has ended or, with `background`, when it has started. If the client disconnects, the run is
cancelled unless the server is configured otherwise; a background run and one with an
`Idempotency-Key` continue.

With an `Idempotency-Key` the request can be repeated for 24 hours: the same request returns the
same run, and another request with the same key is refused."""

_CANCEL_RUN = """\
Requests the cancel and waits for the run to stop. The field `cancel` is `stopped` if the run has
stopped, `requested` if it has not stopped yet, and `already_final` if it had ended before."""

_FOLLOW_RUN = """\
The same events as those of the resume operation, for callers that may read the component and not
run it. If the client disconnects, the run continues."""

_RESUME_RUN = """\
Responds with the stored and future events of the run after the given one, until the run ends. If
the client disconnects, the run continues. A run that was started without `stream` and
`background`, or that ended more than 24 hours ago, has at most two events: its content, if there
is any, and its end."""
