"""Operations on runs across sessions: `/runs` and `/runs/{run_id}`."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from agentctl.records.items import AnyRun, AnyRunPage
from agentctl.records.runs import RunStatus
from agentctl.records.times import ParsedTimestamp
from agentctl.requests import (
    DEFAULT_LIMIT,
    Page,
    RunFilter,
    RunView,
)
from agentctl.server.answers import document_response
from agentctl.server.parameters import Query
from agentctl.server.routes.declared import (
    AfterCursor,
    ComponentId,
    CutQuery,
    DatabaseId,
    IdPrefix,
    Limit,
    PageNumber,
    RunId,
    SessionType,
    SortOrder,
    UserId,
    ViewQuery,
)
from agentctl.server.routing import Operation
from agentctl.server.state import Call

StatusQuery = Annotated[RunStatus | None, Query("Only runs with this status")]
LiveQuery = Annotated[bool, Query("Only live runs; cannot be combined with `status`")]
CreatedAfter = Annotated[ParsedTimestamp | None, Query("Only runs created at or after this time")]
CreatedBefore = Annotated[ParsedTimestamp | None, Query("Only runs created before this time")]
SessionIdQuery = Annotated[str | None, Query("Only runs of this session")]


async def get_runs(
    call: Call,
    status: StatusQuery = None,
    component_type: Annotated[
        SessionType | None, Query("Only runs of this kind of component")
    ] = None,
    component_id: ComponentId = None,
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
    """List runs.

    One page of the runs that the caller can see, across sessions.
    """
    wanted = RunFilter(
        status=status,
        component_type=component_type,
        component_id=component_id,
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
    return document_response(await call.operations.get_runs(wanted))


async def get_run(
    call: Call,
    run_id: RunId,
    db_id: DatabaseId = None,
    view: ViewQuery = "full",
    cut: CutQuery = None,
) -> Response:
    """Get a run."""
    form = RunView(view, cut)
    return document_response(await call.operations.get_run(run_id, db_id=db_id, form=form))


def build_operations() -> list[Operation]:
    """Return the operations on runs."""
    return [
        Operation(get_runs, tag="Runs", result=AnyRunPage),
        Operation(get_run, tag="Runs", result=AnyRun),
    ]
