"""Agents, teams and workflows with their runs: three families of routes from one table.

Each endpoint is written once, for a component of a kind. `_of_kind` makes it an operation of the
kind: with the operation id, the name of the path parameter and the texts of that kind.
"""

from __future__ import annotations

import functools
import inspect
from typing import Annotated, Any, TypeVar

from fastapi import Header, Path, Query
from starlette.responses import Response

from agentctl.errors import BadRequest, TooLarge, UnsupportedMediaType, ValidationFailed
from agentctl.operations import (
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
    RunRequest,
)
from agentctl.records.components import AgentRecord, TeamRecord, WorkflowRecord
from agentctl.records.ids import IDEMPOTENCY_KEY
from agentctl.records.kinds import KINDS, ComponentKind, KindNames
from agentctl.records.routes import operation_ids
from agentctl.records.runs import CancelRecord, RunPage, RunRecord
from agentctl.server.answers import (
    EventStreamResponse,
    cancel_on_disconnect,
    document_response,
    wait_for_first_event,
)
from agentctl.server.bodies import RequestBody
from agentctl.server.openapi.document import EVENT_STREAM_RESPONSES, RUN_RESPONSES
from agentctl.server.requests import ResumeBody, RunBody
from agentctl.server.routes.declared import (
    AfterCursor,
    DatabaseId,
    Limit,
    PageNumber,
    RunId,
    SortOrder,
    UserId,
    build_operation,
    declare_parameters,
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

__all__ = [
    "build_operations",
    "cancel_run",
    "create_run",
    "get_component",
    "get_run",
    "list_components",
    "list_runs",
    "resume_run",
]

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

_RUN = RequestBody(RunBody, form=True)
_RESUME = RequestBody(ResumeBody, form=True, optional=True)


async def list_components(kind: ComponentKind, call: Call) -> Response:
    """List {noun}s.

    All {noun}s configured in the instance that the caller may read.
    """
    return document_response(await call.operations.get_components(kind))


async def get_component(kind: ComponentKind, call: Call, component_id: str) -> Response:
    """Get {a noun}."""
    return document_response(await call.operations.get_component(kind, component_id))


async def create_run(
    kind: ComponentKind,
    call: Call,
    component_id: str,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            pattern=IDEMPOTENCY_KEY,
            description="A name for this request: made again, it is answered with the same run",
        ),
    ] = None,
) -> Response:
    """Start a run of {a noun}.

    Answers with server-sent events, or with `stream` false with the run's record: at its end, or
    with `background` at its start. A client that goes away stops its run unless the server is
    configured otherwise; a background run goes on.

    With an `Idempotency-Key` a request may be made again for 24 hours: one that is the same makes
    no second run, one that is another is refused.
    """
    operations = call.operations
    operations.require_component(kind, component_id)
    body = await _RUN.read(call)
    request = RunRequest(
        message=body["message"],
        session_id=body.get("session_id"),
        user_id=body.get("user_id"),
        background=body.get("background", False),
        idempotency_key=idempotency_key,
    )
    if body.get("stream", True):
        events = operations.stream_run(kind, component_id, request)
        return EventStreamResponse(await wait_for_first_event(call.receive, events), events)
    run = await cancel_on_disconnect(
        call.receive, operations.create_run(kind, component_id, request)
    )
    return document_response(run, 202 if request.background else 200)


async def list_runs(
    kind: ComponentKind,
    call: Call,
    component_id: str,
    status: StatusQuery = None,
    session_id: SessionIdQuery = None,
    user_id: UserId = None,
    db_id: DatabaseId = None,
    live: LiveQuery = False,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    limit: Limit = DEFAULT_LIMIT,
    page: PageNumber = 1,
    cursor: AfterCursor = None,
    sort_order: SortOrder = "desc",
) -> Response:
    """List the runs of {a noun}.

    A page of the runs that the caller sees.
    """
    wanted = RunFilter(
        status=status,
        session_id=session_id,
        user_id=user_id,
        db_id=db_id,
        page=Page(limit, page, cursor, sort_order=sort_order),
        live=live,
        created_after=created_after,
        created_before=created_before,
    )
    return document_response(await call.operations.list_component_runs(kind, component_id, wanted))


async def get_run(
    kind: ComponentKind,
    call: Call,
    component_id: str,
    run_id: RunId,
    session_id: SessionIdQuery = None,
) -> Response:
    """Get a run of {a noun}."""
    return document_response(
        await call.operations.get_component_run(kind, component_id, run_id, session_id=session_id)
    )


async def cancel_run(
    kind: ComponentKind,
    call: Call,
    component_id: str,
    run_id: RunId,
    session_id: Annotated[
        str | None,
        Query(description="The session of the run; required of everyone but administrators"),
    ] = None,
    wait: Annotated[
        float,
        Query(ge=0, le=MAXIMUM_CANCEL_WAIT, description="Seconds to wait for the run to end"),
    ] = DEFAULT_CANCEL_WAIT,
    reason: Annotated[
        str | None,
        Query(max_length=MAXIMUM_REASON_LENGTH, description="Why, for the record of the run"),
    ] = None,
) -> Response:
    """Cancel a run of {a noun}.

    Asks the run to stop and waits for its end. `cancel` says what happened: `stopped` when it has
    ended as cancelled, `requested` when it has not ended yet, `already_final` when it had ended.
    """
    request = CancelRequest(session_id, wait, reason)
    return document_response(await call.operations.cancel_run(kind, component_id, run_id, request))


async def resume_run(
    kind: ComponentKind,
    call: Call,
    component_id: str,
    run_id: RunId,
    last_event_index: Annotated[
        int | None,
        Query(
            ge=BEFORE_FIRST_EVENT,
            le=MAXIMUM_EVENT_NUMBER,
            description="Number of the last event that came; the whole stream when absent",
        ),
    ] = None,
    session_id: Annotated[
        str | None,
        Query(description="The session of the run; required of everyone but administrators"),
    ] = None,
    last_event_id: Annotated[
        int | None,
        Header(
            alias="Last-Event-ID",
            ge=BEFORE_FIRST_EVENT,
            le=MAXIMUM_EVENT_NUMBER,
            description="The same as `last_event_index`, as browsers send it",
        ),
    ] = None,
) -> Response:
    """Follow a run of {a noun}.

    Answers with the events of the run that come after the given one, those to come included, up to
    its end. A client that goes away does not stop the run. Of a run that was started without
    `stream` and `background`, and of one that ended more than 24 hours ago, there are two events:
    its content, when there is any, and its end.
    """
    operations = call.operations
    try:
        body = await _RESUME.read(call)
    except (BadRequest, TooLarge, UnsupportedMediaType):
        await operations.require_run(kind, component_id, run_id, session_id)
        raise
    indexes = {last_event_index, last_event_id, body.get("last_event_index")}
    sessions = {session_id, body.get("session_id")}
    after = _single_value("last_event_index", indexes)
    request = ResumeRequest(
        _single_value("session_id", sessions), BEFORE_FIRST_EVENT if after is None else after
    )
    return EventStreamResponse(
        None, await operations.open_resumed_stream(kind, component_id, run_id, request)
    )


def _single_value(name: str, given: set[T | None]) -> T | None:
    """The value that was given, in whichever places.

    Raises:
        ValidationFailed: there are several.
    """
    first, *others = given - {None} or {None}
    if others:
        raise ValidationFailed(f"{name} is given with different values")
    return first


def build_operations() -> list[Operation]:
    """The routes of the three families."""
    return [route for kind in KINDS for route in _build_family(kind)]


def _build_family(kind: ComponentKind) -> list[Operation]:
    names, ids, record = KINDS[kind], operation_ids(kind), _RECORDS[kind]
    tag = names.tag

    def of_kind(name: str, endpoint: Endpoint) -> Endpoint:
        return _for_kind(names, name, endpoint)

    return [
        build_operation(of_kind(ids.list, list_components), tag=tag, answers=_LISTS[kind]),
        build_operation(of_kind(ids.get, get_component), tag=tag, answers=record),
        build_operation(
            of_kind(ids.create_run, create_run),
            tag=tag,
            answers=RunRecord,
            errors=(409, 413, 415, 429),
            body=_RUN,
            more=RUN_RESPONSES,
        ),
        build_operation(of_kind(ids.list_runs, list_runs), tag=tag, answers=RunPage),
        build_operation(of_kind(ids.get_run, get_run), tag=tag, answers=RunRecord),
        build_operation(
            of_kind(ids.cancel_run, cancel_run),
            tag=tag,
            answers=CancelRecord,
        ),
        build_operation(
            of_kind(ids.resume_run, resume_run),
            tag=tag,
            answers=None,
            errors=(413, 415),
            body=_RESUME,
            more=EVENT_STREAM_RESPONSES,
        ),
    ]


def _for_kind(names: KindNames, name: str, endpoint: Endpoint) -> Endpoint:
    """The endpoint for one kind: `component_id` goes by the kind's own name, as in its paths."""

    @functools.wraps(endpoint)
    async def of_kind(call: Call, **values: Any) -> Response:
        if names.id_field in values:
            values["component_id"] = values.pop(names.id_field)
        return await endpoint(names.kind, call, **values)

    article = "an" if names.kind == "agent" else "a"
    text = inspect.getdoc(endpoint) or ""
    of_kind.__doc__ = text.replace("{a noun}", f"{article} {names.kind}").replace(
        "{noun}", names.kind
    )
    of_kind.__name__ = name
    return declare_parameters(of_kind, _parameters(names, endpoint))


def _parameters(names: KindNames, endpoint: Endpoint) -> list[inspect.Parameter]:
    declared = inspect.signature(endpoint, eval_str=True)
    described = Annotated[str, Path(description=f"The {names.kind}")]
    return [
        parameter.replace(name=names.id_field, annotation=described)
        if parameter.name == "component_id"
        else parameter
        for parameter in declared.parameters.values()
        if parameter.name != "kind"
    ]
