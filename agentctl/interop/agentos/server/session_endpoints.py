"""Sessions with their runs, and approvals, for clients of AgentOS."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Required

import orjson
from starlette.responses import Response
from typing_extensions import TypedDict

from agentctl.errors import Conflict, NotFound, ValidationFailed
from agentctl.interface.bodies import DeleteSessionsBody, Field
from agentctl.interface.declarations import Query
from agentctl.interface.operations.approvals import ApprovalId
from agentctl.interface.operations.files import FileId
from agentctl.interface.operations.runs import RunId
from agentctl.interface.operations.sessions import SessionId
from agentctl.interface.requests import (
    DEFAULT_LIMIT,
    DEFAULT_LOCATOR,
    MAXIMUM_LIMIT,
    BulkDeletion,
    ComponentId,
    DatabaseId,
    Page,
    PageNumber,
    SessionFilter,
    SessionLocator,
    SessionRunsQuery,
    SortOrder,
    UserId,
)
from agentctl.interface.requests.approvals import ApprovalFilter
from agentctl.interface.requests.files import ByteRange
from agentctl.interop.agentos.server import operation
from agentctl.interop.agentos.server.pauses import (
    PAUSE_TYPES,
    read_ruling,
    write_approval_type,
    write_requirement,
)
from agentctl.interop.agentos.server.run_endpoints import MAXIMUM_RUNS
from agentctl.interop.agentos.server.runs import RunBuilder, select_runs
from agentctl.interop.agentos.values import Built, to_seconds, write_counters
from agentctl.records.approvals import ApprovalRecord, ApprovalStatus
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.runs import RunRecord
from agentctl.records.sessions import SESSION_NOT_FOUND
from agentctl.server.answers import Call, json_response, no_content_response
from agentctl.server.requests import RequestBody
from agentctl.server.routes import get_file_content

Only = Annotated[str | None, Query("Only approvals with this value")]

MAXIMUM_APPROVALS = 1_000
"""Approvals of a page."""

MINIMUM_RUN_BYTES = 400
"""Bytes that every run record has: the names of its members alone are more."""

MAXIMUM_SESSIONS = 1_000
"""Sessions of a page. AgentOS does not bound it."""


class ResolveBody(TypedDict, total=False):
    """A decision about an approval. `resolved_by` is not read: the token names who decides."""

    status: Required[Literal["approved", "rejected"]]
    resolved_by: str | None
    resolution_data: Annotated[dict[str, Any] | None, Field(description="Note, values, result")]


_RESOLVE = RequestBody(ResolveBody)


class ApprovalEndpoints(operation.Endpoints):
    """The endpoints of approvals."""

    async def get_approvals(
        self,
        call: Call,
        status: Annotated[ApprovalStatus | None, Query("Only approvals with this status")] = None,
        source_type: Annotated[ComponentKind | None, Query("Only of this kind")] = None,
        approval_type: Annotated[Literal["required", "audit"] | None, Query("Only these")] = None,
        pause_type: Only = None,
        agent_id: Only = None,
        team_id: Only = None,
        workflow_id: Only = None,
        user_id: UserId = None,
        schedule_id: Only = None,
        run_id: Only = None,
        limit: Annotated[int, Query("Maximum number of results", ge=1, le=MAXIMUM_APPROVALS)] = 100,
        page: PageNumber = 1,
    ) -> Response:
        kind, component_id = _find_component(source_type, agent_id, team_id, workflow_id)
        kinds = {pause: name for name, pause in PAUSE_TYPES.items()}
        first = Page(limit, page)

        is_unknown_pause = bool(pause_type) and pause_type not in kinds
        if schedule_id or approval_type == "audit" or is_unknown_pause:
            # There are no such approvals.
            rows = list[ApprovalRecord]()
            total = 0
        else:
            selected = ApprovalFilter(
                status=status,
                kind=kinds.get(pause_type or ""),
                policy="other" if approval_type == "required" else None,
                component_type=kind,
                component_id=component_id,
                user_id=user_id,
                run_id=run_id,
                page=first,
            )
            rows, total = await operation.list_rows(call.operations.approvals.list, selected, limit)

        return json_response(
            operation.build_page([self._write(row) for row in rows], total, page, limit)
        )

    async def count_approvals(self, call: Call, user_id: UserId = None) -> Response:
        """Handle `GET /approvals/count`."""
        pending = ApprovalFilter(status="pending", user_id=user_id, page=Page(limit=1))
        page = (await call.operations.approvals.list(pending)).value
        return json_response({"count": page["meta"]["total_count"]})

    async def get_approval(self, call: Call, approval_id: ApprovalId) -> Response:
        """Handle `GET /approvals/{approval_id}`."""
        approval = await call.operations.approvals.locate("get_approvals", approval_id)
        return json_response(self._write(approval))

    async def get_approval_status(self, call: Call, approval_id: ApprovalId) -> Response:
        """Handle `GET /approvals/{approval_id}/status`."""
        approval = self._write(await call.operations.approvals.locate("get_approvals", approval_id))
        names = ("status", "run_id", "resolved_at", "resolved_by")
        return json_response(
            {"approval_id": approval["id"], **{name: approval[name] for name in names}}
        )

    async def resolve_approval(self, call: Call, approval_id: ApprovalId) -> Response:
        """Handle `POST /approvals/{approval_id}/resolve`."""
        body = await _RESOLVE.read(call)
        data = body.get("resolution_data") or {}
        note = data.get("note", data.get("feedback"))
        seen_hash = data.get("arguments_hash")

        if not isinstance(note, str | None) or not isinstance(seen_hash, str | None):
            raise ValidationFailed(
                "resolution_data has a note or an arguments_hash that is no text"
            )

        operations = call.operations
        approval = await operations.approvals.locate("decide_agent_approval", approval_id)

        if approval["status"] != "pending":
            raise Conflict(f"Approval is already '{approval['status']}' and cannot be resolved")

        values = data.get("values")
        confirmed = body["status"] == "approved"
        ruling = read_ruling(
            approval,
            confirmed,
            values if isinstance(values, dict) else {},
            data.get("result"),
            note,
        )

        if ruling is None:
            missing = "values" if approval["kind"] == "input" else "result"
            raise ValidationFailed(f"resolution_data.{missing} is required for this approval")

        if seen_hash is not None:
            ruling = replace(ruling, arguments_hash=seen_hash)

        document = await operations.approvals.decide(
            approval["component_type"], approval["component_id"], approval_id, ruling
        )
        return json_response(self._write(document.value))

    def _write(self, record: ApprovalRecord) -> Built:
        """Return an approval with the members of AgentOS, and the hash of the shown call."""
        kind = record["component_type"]
        component_id = record["component_id"]
        decided = record["decided_at"] and to_seconds(record["decided_at"])

        data = {
            name: value
            for name, value in (
                ("note", record["note"]),
                ("values", record["answer"]),
                ("result", record["result"] if record["kind"] == "external" else None),
            )
            if value is not None
        }

        built: Built = {
            "id": record["approval_id"],
            "run_id": record["root_run_id"],
            "session_id": record["session_id"],
            "status": record["status"],
            "source_type": kind,
            "approval_type": write_approval_type(record),
            "pause_type": PAUSE_TYPES.get(record["kind"]),
            "tool_name": record["tool_name"],
            "tool_args": record["arguments"],
            "expires_at": record["expires_at"] and to_seconds(record["expires_at"]),
            **dict.fromkeys(names.id_field for names in KINDS.values()),
            "user_id": record["user_id"],
            "schedule_id": None,
            "schedule_run_id": None,
            "source_name": self._directory.get_name(kind, component_id),
            "requirements": [write_requirement(record, record["root_run_id"], self._directory)],
            "context": {
                "arguments_hash": record["arguments_hash"],
                "execution": record["execution"],
                "question": record["question"],
            },
            "resolution_data": data or None,
            "resolved_by": record["decided_by"],
            "resolved_at": decided,
            "created_at": to_seconds(record["created_at"]),
            "updated_at": decided or to_seconds(record["created_at"]),
            "run_status": None,
        }
        return built | {KINDS[kind].id_field: component_id}


def _find_component(
    kind: ComponentKind | None, *ids: str | None
) -> tuple[ComponentKind | None, str | None]:
    named_components = [
        (kind_name, component_id)
        for kind_name, component_id in zip(KINDS, ids, strict=True)
        if component_id
    ]

    if not named_components:
        return kind, None

    if len(named_components) > 1 or kind not in (None, named_components[0][0]):
        raise ValidationFailed("agent_id, team_id, workflow_id and source_type name several kinds")
    return named_components[0]


class _DeletionBody(DeleteSessionsBody, total=False):
    """Sessions to delete. The types are not read, because an id is unique in a database."""

    session_types: list[str] | None


_DELETE = RequestBody(_DeletionBody)


class SessionEndpoints(operation.Endpoints):
    """The endpoints of sessions."""

    async def get_media(
        self, call: Call, session_id: SessionId, file_id: FileId, byte_range: ByteRange = None
    ) -> Response:
        """Handle `GET /sessions/{session_id}/media/{file_id}`: the bytes of a file of a session."""
        # The path of AgentOS names no database, and an id is in one of them only.
        for database in call.caller.app_state.settings.databases:
            with contextlib.suppress(NotFound):
                record = (await call.operations.files.get(file_id, db_id=database.id)).value
                if record["session_id"] == session_id:
                    return await get_file_content(
                        call, file_id, db_id=database.id, byte_range=byte_range
                    )
        raise NotFound("File not found")

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
            document = await call.operations.sessions.list(selected)

            def build() -> dict[str, Any]:
                record = document.value
                total = record["meta"]["total_count"]
                return _build_session_page(record["data"], total, first.page, size)

            return self._bodies.respond(("sessions", document.raw, first.page, size), build)

        sessions, total = await operation.list_rows(call.operations.sessions.list, selected, size)
        return json_response(_build_session_page(sessions, total, first.page, size))

    async def delete_session(
        self, call: Call, session_id: SessionId, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Response:
        try:
            await call.operations.sessions.delete(session_id, where)
        except NotFound:
            call.operations.sessions.require_database(where)
        return no_content_response()

    async def delete_sessions(self, call: Call, db_id: DatabaseId = None) -> Response:
        body = await _DELETE.read(call)
        ids = body["session_ids"]
        types = body.get("session_types")

        if types is not None and len(types) != len(ids):
            raise ValidationFailed("session_types must have as many entries as session_ids")

        where = SessionLocator(db_id=db_id)
        call.operations.sessions.require_database(where)

        existing = list[str]()
        for session_id in dict.fromkeys(ids):
            with contextlib.suppress(NotFound):
                await call.operations.sessions.require(session_id, where)
                existing.append(session_id)

        if existing:
            await call.operations.sessions.delete_several(BulkDeletion(tuple(existing), db_id))

        return no_content_response()

    async def list_runs(
        self,
        previews: bool,
        call: Call,
        session_id: SessionId,
        where: SessionLocator = DEFAULT_LOCATOR,
        created_after: operation.Seconds = None,
        created_before: operation.Seconds = None,
    ) -> Response:
        """Handle `GET /sessions/{session_id}/runs` and `…/run-previews`.

        For whole runs, a session whose first run has not ended is not found, as on AgentOS.
        agent-ui reads it when the run begins, and a late response without the answer would replace
        the answer.
        """
        parts = list[bytes]()
        query = SessionRunsQuery(where)

        while len(parts) * query.limit < MAXIMUM_RUNS:
            part = await call.operations.sessions.list_runs(session_id, query)
            parts.append(part.raw)
            # A page without as many runs is the last one, and this one has far fewer bytes.
            if len(part.raw) < query.limit * MINIMUM_RUN_BYTES or len(part.value) < query.limit:
                break
            query = replace(query, after=part.value[-1]["run_id"])

        statuses = operation.read_repeated(call, "status")
        key = ("previews" if previews else "runs", *parts, *statuses, created_after, created_before)

        def build() -> list[dict[str, Any]]:
            runs = [run for part in parts for run in orjson.loads(part)]
            builder = RunBuilder(self._directory, runs)
            if builder.is_starting and not previews:
                raise NotFound(SESSION_NOT_FOUND)
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
        run = (await call.operations.sessions.get_run(session_id, run_id, where)).value

        descendants = list[RunRecord]()
        waiting_run_ids = list(run["member_runs"])
        while waiting_run_ids and len(descendants) < MAXIMUM_RUNS:
            member = await call.operations.sessions.get_run(
                session_id, waiting_run_ids.pop(0), where
            )
            descendants.append(member.value)
            waiting_run_ids += descendants[-1]["member_runs"]

        return json_response(RunBuilder(self._directory, [run, *descendants]).build_item(run))


def _build_session_page(
    sessions: Sequence[Mapping[str, Any]], total: int, page: int, size: int
) -> dict[str, Any]:
    items = [
        {**item, "metrics": write_counters({"total_tokens": item["total_tokens"]})}
        for item in sessions
    ]
    return operation.build_page(items, total, page, size)
