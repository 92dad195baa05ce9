"""Sessions and their runs, for clients of AgentOS."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import orjson
from starlette.responses import Response

from agentctl.errors import NotFound, ValidationFailed
from agentctl.interface.declarations import Query
from agentctl.interface.operations import SessionId
from agentctl.interface.operations.runs import RunId
from agentctl.interface.requests import (
    DEFAULT_LIMIT,
    DEFAULT_LOCATOR,
    MAXIMUM_LIMIT,
    BulkDeletion,
    ComponentId,
    DatabaseId,
    Page,
    SessionFilter,
    SessionLocator,
    SessionRunsQuery,
    SortOrder,
)
from agentctl.interop.agentos.server.operation import (
    Endpoints,
    Seconds,
    build_page,
    list_rows,
    read_repeated,
)
from agentctl.interop.agentos.server.run_endpoints import MAXIMUM_RUNS
from agentctl.interop.agentos.server.runs import RunBuilder, select_runs
from agentctl.interop.agentos.values import write_counters
from agentctl.records.runs import RunRecord
from agentctl.server.answers import json_response, no_content_response
from agentctl.server.operation_bodies import DeleteSessionsBody
from agentctl.server.requests import RequestBody
from agentctl.server.state import Call

MINIMUM_RUN_BYTES = 400
"""Bytes that every run record has: the names of its members alone are more."""

MAXIMUM_SESSIONS = 1_000
"""Sessions of a page. AgentOS does not bound it."""


class _DeletionBody(DeleteSessionsBody, total=False):
    """Sessions to delete. The types are not read, because an id is unique in a database."""

    session_types: list[str] | None


_DELETE = RequestBody(_DeletionBody)


class SessionEndpoints(Endpoints):
    """The endpoints of sessions."""

    async def get_sessions(
        self,
        call: Call,
        where: SessionLocator = DEFAULT_LOCATOR,
        component_id: ComponentId = None,
        session_name: Annotated[str | None, Query("Beginning of the name")] = None,
        limit: Annotated[int, Query("Maximum number of results", ge=1)] = DEFAULT_LIMIT,
        page: Annotated[int, Query("Page number", ge=0)] = 1,
        sort_by: Annotated[str, Query("Field to sort by")] = "created_at",
        sort_order: SortOrder = "desc",
    ) -> Response:
        first = Page(limit, max(page, 1), sort_order=sort_order)
        if sort_by == "updated_at":
            first = replace(first, sort_by="updated_at")
        selected = SessionFilter(where, component_id or None, session_name, first)
        size = min(limit, MAXIMUM_SESSIONS)
        if limit <= MAXIMUM_LIMIT:
            document = await call.operations.get_sessions(selected)

            def build() -> dict[str, Any]:
                record = document.value
                total = record["meta"]["total_count"]
                return _build_session_page(record["data"], total, first.page, size)

            return self._bodies.respond(("sessions", document.raw, first.page, size), build)
        sessions, total = await list_rows(call.operations.get_sessions, selected, size)
        return json_response(_build_session_page(sessions, total, first.page, size))

    async def delete_session(
        self, call: Call, session_id: SessionId, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Response:
        try:
            await call.operations.delete_session(session_id, where)
        except NotFound:
            call.operations.require_database(where)
        return no_content_response()

    async def delete_sessions(self, call: Call, db_id: DatabaseId = None) -> Response:
        body = await _DELETE.read(call)
        ids, types = body["session_ids"], body.get("session_types")
        if types is not None and len(types) != len(ids):
            raise ValidationFailed("session_types must have as many entries as session_ids")
        where = SessionLocator(db_id=db_id)
        call.operations.require_database(where)
        existing = list[str]()
        for session_id in dict.fromkeys(ids):
            with contextlib.suppress(NotFound):
                await call.operations.require_session(session_id, where)
                existing.append(session_id)
        if existing:
            await call.operations.delete_sessions(BulkDeletion(tuple(existing), db_id))
        return no_content_response()

    async def list_runs(
        self,
        previews: bool,
        call: Call,
        session_id: SessionId,
        where: SessionLocator = DEFAULT_LOCATOR,
        created_after: Seconds = None,
        created_before: Seconds = None,
    ) -> Response:
        """Handle `GET /sessions/{session_id}/runs` and `…/run-previews`.

        For whole runs, a session whose first run has not ended is not found, as on AgentOS.
        agent-ui reads it when the run begins, and a late response without the answer would replace
        the answer.
        """
        parts, query = list[bytes](), SessionRunsQuery(where)
        while len(parts) * query.limit < MAXIMUM_RUNS:
            part = await call.operations.get_session_runs(session_id, query)
            parts.append(part.raw)
            # A page without as many runs is the last one, and this one has far fewer bytes.
            if len(part.raw) < query.limit * MINIMUM_RUN_BYTES or len(part.value) < query.limit:
                break
            query = replace(query, after=part.value[-1]["run_id"])
        statuses = read_repeated(call, "status")
        key = ("previews" if previews else "runs", *parts, *statuses, created_after, created_before)

        def build() -> list[dict[str, Any]]:
            runs = [run for part in parts for run in orjson.loads(part)]
            builder = RunBuilder(self._directory, runs)
            if builder.is_starting and not previews:
                raise NotFound("Session not found")
            items = builder.build_previews() if previews else builder.build_items()
            return select_runs(items, statuses, created_after, created_before)

        return self._bodies.respond(key, build)

    async def get_session_run(
        self,
        call: Call,
        session_id: SessionId,
        run_id: RunId,
        where: SessionLocator = DEFAULT_LOCATOR,
    ) -> Response:
        run = (await call.operations.get_session_run(session_id, run_id, where)).value
        descendants = list[RunRecord]()
        waiting = [*run["member_runs"]]
        while waiting and len(descendants) < MAXIMUM_RUNS:
            member = await call.operations.get_session_run(session_id, waiting.pop(0), where)
            descendants.append(member.value)
            waiting += descendants[-1]["member_runs"]
        return json_response(RunBuilder(self._directory, [run, *descendants]).build_item(run))


def _build_session_page(
    sessions: Sequence[Mapping[str, Any]], total: int, page: int, size: int
) -> dict[str, Any]:
    items = [
        {**item, "metrics": write_counters({"total_tokens": item["total_tokens"]})}
        for item in sessions
    ]
    return build_page(items, total, page, size)
