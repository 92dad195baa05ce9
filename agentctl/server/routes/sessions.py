"""Operations on sessions (docs/contract.md "Sessions")."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from starlette.responses import Response, StreamingResponse

from agentctl.errors import ValidationFailed
from agentctl.records.items import AnyRun
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.sessions import SessionDetail, SessionPage
from agentctl.requests import (
    DEFAULT_LIMIT,
    MAXIMUM_LIMIT,
    BulkDeletion,
    ExportFormat,
    NewSession,
    Page,
    RunView,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    SessionRunsQuery,
)
from agentctl.server.answers import (
    BytesResponse,
    document_response,
    no_content_response,
)
from agentctl.server.bodies import RequestBody
from agentctl.server.openapi.responses import EXPORT_RESPONSES, EXPORT_TYPES
from agentctl.server.parameters import Query
from agentctl.server.requests import (
    DeleteSessionsBody,
    NewSessionBody,
    RenameSessionBody,
    UpdateSessionBody,
)
from agentctl.server.revalidation import KnownTags, versioned_response
from agentctl.server.routes.declared import (
    AfterCursor,
    ComponentId,
    CutQuery,
    DatabaseId,
    IdPrefix,
    Limit,
    PageNumber,
    RunId,
    SessionId,
    SessionType,
    SortOrder,
    Table,
    TypeQuery,
    UserId,
    ViewQuery,
    read_session_body,
)
from agentctl.server.routing import Operation
from agentctl.server.state import Call

_NEW = RequestBody(NewSessionBody, optional=True)
_UPDATE = RequestBody(UpdateSessionBody)
_RENAME = RequestBody(RenameSessionBody)
_DELETE = RequestBody(DeleteSessionsBody)


async def get_sessions(
    call: Call,
    type: TypeQuery = None,
    component_id: ComponentId = None,
    user_id: UserId = None,
    session_name: Annotated[
        str | None, Query("Only sessions whose name starts with this text, in any case")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    page: PageNumber = 1,
    cursor: AfterCursor = None,
    sort_by: Annotated[
        Literal["created_at", "updated_at"], Query("Field to sort by")
    ] = "created_at",
    sort_order: SortOrder = "desc",
    id_prefix: IdPrefix = None,
    db_id: DatabaseId = None,
    table: Table = None,
) -> Response:
    """List sessions.

    One page of the sessions that the caller can see, as summaries.
    """
    where = SessionLocator(type=type, user_id=user_id, db_id=db_id, table=table)
    part = Page(limit, page, cursor, sort_by, sort_order)
    return document_response(
        await call.operations.get_sessions(
            SessionFilter(where, component_id, session_name, part, id_prefix)
        )
    )


async def create_session(
    call: Call,
    type: Annotated[SessionType, Query("Type of the session")] = "agent",
    db_id: DatabaseId = None,
) -> Response:
    """Create a session.

    Creates an empty session that the caller owns. An id that is in use is a conflict.
    """
    body = await _NEW.read(call)
    session = NewSession(
        type=type,
        session_id=body.get("session_id"),
        session_name=body.get("session_name") or "",
        session_state=body.get("session_state"),
        metadata=body.get("metadata"),
        user_id=body.get("user_id"),
        component_id=_component_id(type, body),
        db_id=db_id,
    )
    return document_response(await call.operations.create_session(session), 201)


def _component_id(type: ComponentKind, body: dict[str, object]) -> str | None:
    found: str | None = None
    for kind, names in KINDS.items():
        value = body.get(names.id_field)
        if kind == type:
            found = None if value is None else str(value)
        elif value is not None:
            raise ValidationFailed(f"{names.id_field} cannot be used with type {type}")
    return found


async def delete_sessions(call: Call, db_id: DatabaseId = None) -> Response:
    """Delete several sessions.

    Deletes all of the given sessions with their runs, or none if one of them cannot be deleted.
    """
    body = await _DELETE.read(call)
    await call.operations.delete_sessions(BulkDeletion(tuple(body["session_ids"]), db_id))
    return no_content_response()


async def get_session_by_id(
    call: Call,
    session_id: SessionId,
    type: TypeQuery = None,
    user_id: UserId = None,
    db_id: DatabaseId = None,
    table: Table = None,
) -> Response:
    """Get a session.

    One session with its metadata, configuration and history. The shape depends on its type.
    """
    where = SessionLocator(type, user_id, db_id, table)
    known = KnownTags(call.scope["headers"])
    version, found = await call.operations.get_changed_session(session_id, where, known)
    response = BytesResponse(b"") if found is None else document_response(found)
    return versioned_response(response, version)


async def update_session(
    call: Call,
    session_id: SessionId,
    type: TypeQuery = None,
    user_id: UserId = None,
    db_id: DatabaseId = None,
    table: Table = None,
) -> Response:
    """Update a session.

    Replaces the name, the state or the metadata. Each given value replaces the whole stored value.
    """
    where = SessionLocator(type, user_id, db_id, table)
    changes = await read_session_body(call, _UPDATE, session_id, where)
    return document_response(
        await call.operations.update_session(session_id, SessionPatch(changes), where)
    )


async def delete_session(
    call: Call,
    session_id: SessionId,
    type: TypeQuery = None,
    user_id: UserId = None,
    db_id: DatabaseId = None,
    table: Table = None,
    cancel: Annotated[
        bool, Query("Cancel its runs first, and wait up to 10 s for them to stop")
    ] = False,
) -> Response:
    """Delete a session.

    Deletes the session with its runs. A live run is a conflict, unless `cancel` is set.
    """
    where = SessionLocator(type, user_id, db_id, table)
    await call.operations.delete_session(session_id, where, cancel=cancel)
    return no_content_response()


async def rename_session(
    call: Call,
    session_id: SessionId,
    type: TypeQuery = None,
    user_id: UserId = None,
    db_id: DatabaseId = None,
    table: Table = None,
) -> Response:
    """Rename a session."""
    where = SessionLocator(type, user_id, db_id, table)
    body = await read_session_body(call, _RENAME, session_id, where)
    name = body["session_name"]
    return document_response(await call.operations.rename_session(session_id, name, where))


async def summarize_session(
    call: Call,
    session_id: SessionId,
    type: TypeQuery = None,
    user_id: UserId = None,
    db_id: DatabaseId = None,
    table: Table = None,
) -> Response:
    """Summarize a session.

    Summarizes the runs that are not part of the summary yet, and returns the session.
    """
    where = SessionLocator(type, user_id, db_id, table)
    return document_response(await call.operations.summarize_session(session_id, where))


async def export_session(
    call: Call,
    session_id: SessionId,
    format: Annotated[ExportFormat, Query("Format of the file")] = "jsonl",
    type: TypeQuery = None,
    user_id: UserId = None,
    db_id: DatabaseId = None,
    table: Table = None,
) -> Response:
    """Export a session.

    The session with all its runs as a file: `jsonl` is one line, `json` an array with the same
    object, `markdown` a transcript.
    """
    where = SessionLocator(type, user_id, db_id, table)
    parts = call.operations.export_session(session_id, where, format=format)
    first = await anext(parts)  # an error of the operation is a status

    async def send_all() -> AsyncIterator[bytes]:
        yield first
        async for part in parts:
            yield part

    return StreamingResponse(send_all(), media_type=EXPORT_TYPES[format])


async def get_session_runs(
    call: Call,
    session_id: SessionId,
    type: TypeQuery = None,
    user_id: UserId = None,
    db_id: DatabaseId = None,
    table: Table = None,
    limit: Annotated[
        int, Query("Maximum number of results", ge=1, le=MAXIMUM_LIMIT)
    ] = MAXIMUM_LIMIT,
    after: Annotated[
        str | None, Query("Only runs after the run with this id", min_length=1)
    ] = None,
    before: Annotated[
        str | None, Query("Only runs before the run with this id", min_length=1)
    ] = None,
    parent: Annotated[
        Literal["none"] | None,
        Query("`none` leaves out the runs of members and steps, and background work"),
    ] = None,
    order: SortOrder = "asc",
    view: ViewQuery = "full",
    cut: CutQuery = None,
) -> Response:
    """List the runs of a session.

    Oldest first, including the runs of members and steps. If there are as many as `limit`, `after`
    with the id of the last one continues the list, or `before` if the order is `desc`.
    """
    where = SessionLocator(type, user_id, db_id, table)
    form = RunView(view, cut)
    query = SessionRunsQuery(where, limit, after, before, parent, order, form)
    return document_response(await call.operations.get_session_runs(session_id, query))


async def get_session_run(
    call: Call,
    session_id: SessionId,
    run_id: RunId,
    type: TypeQuery = None,
    user_id: UserId = None,
    db_id: DatabaseId = None,
    table: Table = None,
    view: ViewQuery = "full",
    cut: CutQuery = None,
) -> Response:
    """Get a run of a session."""
    where, form = SessionLocator(type, user_id, db_id, table), RunView(view, cut)
    found = await call.operations.get_session_run(session_id, run_id, where, form=form)
    return document_response(found)


def build_operations() -> list[Operation]:
    """Return the operations on sessions."""
    tag = "Sessions"
    changes = (409, 413, 415)
    return [
        Operation(get_session_by_id, tag=tag, result=SessionDetail),
        Operation(get_sessions, tag=tag, result=SessionPage),
        Operation(
            create_session, tag=tag, result=SessionDetail, status=201, errors=changes, body=_NEW
        ),
        Operation(delete_sessions, tag=tag, status=204, errors=changes, body=_DELETE),
        Operation(update_session, tag=tag, result=SessionDetail, errors=(413, 415), body=_UPDATE),
        Operation(delete_session, tag=tag, status=204, errors=(409,)),
        Operation(rename_session, tag=tag, result=SessionDetail, errors=(413, 415), body=_RENAME),
        Operation(summarize_session, tag=tag, result=SessionDetail, errors=(409,)),
        Operation(export_session, tag=tag, responses=EXPORT_RESPONSES),
        Operation(get_session_runs, tag=tag, result=list[AnyRun]),
        Operation(get_session_run, tag=tag, result=AnyRun),
    ]
