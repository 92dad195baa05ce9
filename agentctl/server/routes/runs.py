"""The endpoints that start and follow runs. The first argument is the kind of component."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Annotated, Any, Literal, TypeVar

from starlette.responses import Response

from agentctl.errors import BadRequest, TooLarge, UnsupportedMediaType, ValidationFailed
from agentctl.interface.declarations import Header, Query
from agentctl.interface.operations.runs import ComponentId, RunId
from agentctl.interface.requests import (
    BEFORE_FIRST_EVENT,
    MAXIMUM_EVENT_NUMBER,
    OfSession,
    ResumeRequest,
    RunRequest,
    StreamEvent,
)
from agentctl.interface.requests.approvals import IdempotencyKey
from agentctl.interface.requests.repeats import ForkRequest, RetryRequest
from agentctl.records.document import Document
from agentctl.records.ids import IDEMPOTENCY_KEY
from agentctl.records.kinds import ComponentKind
from agentctl.records.runs import RunRecord
from agentctl.runs.follow.follow import stream_items
from agentctl.server.answers import (
    EventStreamResponse,
    cancel_on_disconnect,
    document_response,
    wait_for_first_events,
)
from agentctl.server.requests import BODIES, build_continue_request, build_run_request
from agentctl.server.state import Call

T = TypeVar("T")

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


StartKey = Annotated[
    str | None,
    Header(
        "A unique name of this request; a repeated request with the same key returns the same run",
        alias="Idempotency-Key",
        pattern=IDEMPOTENCY_KEY,
    ),
]


async def create_run(
    kind: ComponentKind, call: Call, component_id: ComponentId, idempotency_key: StartKey = None
) -> Response:
    """Handle `POST /agents/{agent_id}/runs` and the same of the other kinds."""
    operations = call.operations
    operations.require_component(kind, component_id)
    body = await BODIES["create_run"].read(call)
    request = build_run_request(RunRequest, body, idempotency_key)
    return await _respond_to_start(
        call,
        body,
        lambda: operations.stream_run_portions(kind, component_id, request),
        lambda: operations.create_run(kind, component_id, request),
    )


async def _respond_to_start(
    call: Call,
    body: Mapping[str, Any],
    stream: Callable[[], AsyncGenerator[list[StreamEvent]]],
    start: Callable[[], Coroutine[Any, Any, Document[RunRecord]]],
) -> Response:
    """Start a run, and return its events or its record."""
    if body.get("stream", True):
        events = stream()
        return EventStreamResponse(await wait_for_first_events(call.receive, events), events)
    run = await cancel_on_disconnect(call.receive, start())
    goes_on = body.get("background", False) or run.value["status"] in ("PENDING", "RUNNING")
    return document_response(run, 202 if goes_on else 200)


async def continue_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentId,
    run_id: RunId,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Handle `POST /agents/{agent_id}/runs/{run_id}/continue` and the same of the other kinds."""
    operations = call.operations
    body = await _read_body("continue_run", call, kind, component_id, run_id)
    request = build_continue_request(body, idempotency_key)
    goes_on = await operations.begin_continuation(kind, component_id, run_id, request)
    if goes_on is not None and body.get("stream", True):
        return EventStreamResponse(None, operations.follow_continuation(goes_on))
    run = await operations.read_continuation(kind, component_id, run_id, request, goes_on)
    return document_response(run, 202 if goes_on is not None and request.background else 200)


async def retry_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentId,
    run_id: RunId,
    idempotency_key: StartKey = None,
) -> Response:
    """Handle `POST /agents/{agent_id}/runs/{run_id}/retry` and the same of the other kinds."""
    operations = call.operations
    body = await _read_body("retry_run", call, kind, component_id, run_id)
    request = build_run_request(RetryRequest, body, idempotency_key)
    return await _respond_to_start(
        call,
        body,
        lambda: operations.stream_retry_portions(kind, component_id, run_id, request),
        lambda: operations.retry_run(kind, component_id, run_id, request),
    )


async def fork_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentId,
    run_id: RunId,
    idempotency_key: StartKey = None,
) -> Response:
    """Handle `POST /agents/{agent_id}/runs/{run_id}/fork` and the same of the other kinds."""
    operations = call.operations
    body = await _read_body("fork_run", call, kind, component_id, run_id)
    request = build_run_request(ForkRequest, body, idempotency_key)
    return await _respond_to_start(
        call,
        body,
        lambda: operations.stream_fork_portions(kind, component_id, run_id, request),
        lambda: operations.fork_run(kind, component_id, run_id, request),
    )


async def resume_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentId,
    run_id: RunId,
    last_event_index: LastEventIndex = None,
    session_id: Annotated[
        str | None, Query("Session of the run; required unless the caller is an administrator")
    ] = None,
    last_event_id: LastEventId = None,
    view: EventsView = "events",
) -> Response:
    """Handle `POST /agents/{agent_id}/runs/{run_id}/resume` and the same of the other kinds."""
    operations = call.operations
    body = await _read_body("resume_run", call, kind, component_id, run_id, session_id)
    indexes = {last_event_index, last_event_id, body.get("last_event_index")}
    sessions = {session_id, body.get("session_id")}
    after = _single_value("last_event_index", indexes)
    request = _build_resume(_single_value("session_id", sessions), after, view)
    events = await operations.open_resumed_stream(kind, component_id, run_id, request)
    return EventStreamResponse(None, events if view == "events" else stream_items(events, after))


async def follow_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentId,
    run_id: RunId,
    last_event_index: LastEventIndex = None,
    session_id: OfSession = None,
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


async def _read_body(
    name: str,
    call: Call,
    kind: ComponentKind,
    component_id: str,
    run_id: str,
    session_id: str | None = None,
) -> dict[str, Any]:
    """Return the body of a request about a run. A run that is not found is a 404 before a 422."""
    try:
        return await BODIES[name].read(call)
    except (BadRequest, TooLarge, UnsupportedMediaType):
        await call.operations.require_run(kind, component_id, run_id, session_id)
        raise


def _single_value(name: str, values: set[T | None]) -> T | None:
    """Return the only value that is not None."""
    first, *others = values - {None} or {None}
    if others:
        raise ValidationFailed(f"{name} is given with different values")
    return first
