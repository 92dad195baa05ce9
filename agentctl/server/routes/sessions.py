"""The sessions family (contract.md 4)."""

from __future__ import annotations

import functools
import inspect
from inspect import Parameter
from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import Response

from agentctl.errors import ValidationFailed
from agentctl.operations import (
    DEFAULT_LIMIT,
    MAXIMUM_LIMIT,
    BulkDeletion,
    NewSession,
    Page,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    SessionRunsQuery,
)
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.runs import RunRecord
from agentctl.records.sessions import SessionDetail, SessionPage
from agentctl.server.answers import document_response, no_content_response
from agentctl.server.bodies import RequestBody
from agentctl.server.requests import (
    DeleteSessionsBody,
    NewSessionBody,
    RenameSessionBody,
    UpdateSessionBody,
)
from agentctl.server.routes.declared import (
    AfterCursor,
    ComponentId,
    DatabaseId,
    Limit,
    PageNumber,
    RunId,
    SessionId,
    SessionType,
    SortOrder,
    Table,
    UserId,
    build_operation,
    declare_parameters,
    read_session_body,
)
from agentctl.server.routing import Endpoint, Operation
from agentctl.server.state import Call

__all__ = [
    "build_operations",
    "create_session",
    "delete_session",
    "delete_sessions",
    "get_session_by_id",
    "get_session_run",
    "get_session_runs",
    "get_sessions",
    "rename_session",
    "update_session",
]

TypeQuery = Annotated[
    SessionType | None,
    Query(description="The session's type; detected from the session when absent"),
]

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
        str | None, Query(description="Only names that begin so; upper and lower case are equal")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    page: PageNumber = 1,
    cursor: AfterCursor = None,
    sort_by: Annotated[
        Literal["created_at", "updated_at"], Query(description="What the order is by")
    ] = "created_at",
    sort_order: SortOrder = "desc",
    db_id: DatabaseId = None,
    table: Table = None,
) -> Response:
    """List sessions.

    A page of the sessions that the caller sees, summaries only.
    """
    where = SessionLocator(type=type, user_id=user_id, db_id=db_id, table=table)
    part = Page(limit, page, cursor, sort_by, sort_order)
    return document_response(
        await call.operations.get_sessions(SessionFilter(where, component_id, session_name, part))
    )


async def create_session(
    call: Call,
    type: Annotated[SessionType, Query(description="The session's type")] = "agent",
    db_id: DatabaseId = None,
) -> Response:
    """Create a session.

    Makes an empty session, owned by the caller. An id that is taken is a conflict.
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
    """The id in the field that the type names; the other two must be absent or null."""
    found: str | None = None
    for kind, names in KINDS.items():
        value = body.get(names.id_field)
        if kind == type:
            found = None if value is None else str(value)
        elif value is not None:
            raise ValidationFailed(f"{names.id_field} does not go with type {type}")
    return found


async def delete_sessions(call: Call, db_id: DatabaseId = None) -> Response:
    """Delete several sessions.

    Removes all of the named sessions with their runs, or none when one cannot be removed.
    """
    body = await _DELETE.read(call)
    await call.operations.delete_sessions(BulkDeletion(tuple(body["session_ids"]), db_id))
    return no_content_response()


_WHERE = {"type": TypeQuery, "user_id": UserId, "db_id": DatabaseId, "table": Table}
"""The query parameters that `Where` is made of."""


def _with_where_parameters(endpoint: Endpoint) -> Endpoint:
    """The endpoint with the query parameters of `_WHERE` in the place of its `where`."""

    @functools.wraps(endpoint)
    async def of_where(call: Call, **values: Any) -> Response:
        where = SessionLocator(**{name: values.pop(name) for name in _WHERE})
        return await endpoint(call, where=where, **values)

    parameters = list[Parameter]()
    for parameter in inspect.signature(endpoint, eval_str=True).parameters.values():
        if parameter.name != "where":
            parameters.append(parameter)
            continue
        for name, annotation in _WHERE.items():
            parameters.append(parameter.replace(name=name, annotation=annotation, default=None))
    return declare_parameters(of_where, parameters)


@_with_where_parameters
async def get_session_by_id(
    call: Call,
    session_id: SessionId,
    where: SessionLocator,
) -> Response:
    """Get a session.

    One session with its metadata, configuration and history. The shape depends on its type.
    """
    return document_response(await call.operations.get_session_by_id(session_id, where))


@_with_where_parameters
async def update_session(
    call: Call,
    session_id: SessionId,
    where: SessionLocator,
) -> Response:
    """Update a session.

    Replaces the name, the state or the metadata; each given one replaces the whole value.
    """
    changes = await read_session_body(call, _UPDATE, session_id, where)
    return document_response(
        await call.operations.update_session(session_id, SessionPatch(changes), where)
    )


@_with_where_parameters
async def delete_session(
    call: Call,
    session_id: SessionId,
    where: SessionLocator,
    cancel: Annotated[
        bool, Query(description="Cancel its runs first, and wait up to 10 s for their end")
    ] = False,
) -> Response:
    """Delete a session.

    Removes the session with its runs. A run that is not final is a conflict.
    """
    await call.operations.delete_session(session_id, where, cancel=cancel)
    return no_content_response()


@_with_where_parameters
async def rename_session(
    call: Call,
    session_id: SessionId,
    where: SessionLocator,
) -> Response:
    """Rename a session."""
    body = await read_session_body(call, _RENAME, session_id, where)
    name = body["session_name"]
    return document_response(await call.operations.rename_session(session_id, name, where))


@_with_where_parameters
async def get_session_runs(
    call: Call,
    session_id: SessionId,
    where: SessionLocator,
    limit: Annotated[
        int | None, Query(ge=1, le=MAXIMUM_LIMIT, description="How many; all when absent")
    ] = None,
    after: Annotated[str | None, Query(description="Only runs after this one (a run id)")] = None,
) -> Response:
    """List the runs of a session.

    Oldest first, members' and steps' runs included.
    """
    query = SessionRunsQuery(where, limit, after)
    return document_response(await call.operations.get_session_runs(session_id, query))


@_with_where_parameters
async def get_session_run(
    call: Call,
    session_id: SessionId,
    run_id: RunId,
    where: SessionLocator,
) -> Response:
    """Get a run of a session."""
    return document_response(await call.operations.get_session_run(session_id, run_id, where))


def build_operations() -> list[Operation]:
    """The routes of the family."""
    tag = "Sessions"
    return [
        build_operation(get_session_by_id, tag=tag, answers=SessionDetail),
        build_operation(get_sessions, tag=tag, answers=SessionPage),
        build_operation(
            create_session,
            tag=tag,
            answers=SessionDetail,
            status=201,
            errors=(409, 413, 415),
            body=_NEW,
        ),
        build_operation(
            delete_sessions,
            tag=tag,
            answers=None,
            status=204,
            errors=(409, 413, 415),
            body=_DELETE,
        ),
        build_operation(
            update_session,
            tag=tag,
            answers=SessionDetail,
            errors=(413, 415),
            body=_UPDATE,
        ),
        build_operation(delete_session, tag=tag, answers=None, status=204, errors=(409,)),
        build_operation(
            rename_session,
            tag=tag,
            answers=SessionDetail,
            errors=(413, 415),
            body=_RENAME,
        ),
        build_operation(get_session_runs, tag=tag, answers=list[RunRecord]),
        build_operation(get_session_run, tag=tag, answers=RunRecord),
    ]
