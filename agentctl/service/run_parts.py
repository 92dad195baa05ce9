"""Reads of parts of runs: events, tool calls, causes, open runs (docs/contract.md "Runs")."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import orjson

from agentctl import errors
from agentctl.interface.operations.model_calls import ModelCallDetail, RunModelCalls
from agentctl.interface.requests import (
    BEFORE_FIRST_EVENT,
    MAXIMUM_EVENT_NUMBER,
    MAXIMUM_LIMIT,
    SUMMARY_VIEW,
    Page,
    ResumeRequest,
    RunFilter,
    RunView,
    StreamEvent,
)
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS, ComponentKind, RunStatus
from agentctl.records.routes import operation_ids
from agentctl.records.runs import RunCauses, RunRow, ToolCallRecord
from agentctl.records.times import format_rfc3339, now
from agentctl.runs.follow.follow import flatten
from agentctl.service import documents, paging
from agentctl.service.documents import MAXIMUM_DEPTH
from agentctl.service.family import OperationFamily
from agentctl.service.model_calls import read_model_call, read_model_calls
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import idempotency, lists, run_reads
from agentctl.store.visibility import Visibility

MAXIMUM_CAUSES = 100
"""Maximum number of causes in one response."""

_OPEN_STATUSES: tuple[RunStatus, ...] = ("PENDING", "RUNNING", "PAUSED")


class RunPartOperations(OperationFamily):
    """Operations that read parts of a run."""

    async def follow_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        events = flatten(await self.open_followed_stream(kind, component_id, run_id, request))
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def open_followed_stream(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Return the events of a run after `request.after`, stored and future ones, in portions.

        Errors are raised at the call, so that the server sends them before an event exists.
        """
        path = {KINDS[kind].id_field: component_id, "run_id": run_id}
        async with self.audit(operation_ids(kind).follow_run, **path):
            database = await self.lookups.run_database(
                kind, component_id, run_id, request.session_id
            )
            check_event_number(request.after)
            return self.follow(database, run_id, request.after)

    async def get_tool_call(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        tool_call_id: str,
        *,
        session_id: str | None = None,
    ) -> Document[ToolCallRecord]:
        path = {KINDS[kind].id_field: component_id, "run_id": run_id, "tool_call_id": tool_call_id}
        async with self.audit(operation_ids(kind).get_tool_call, **path):
            database = await self.lookups.run_database(kind, component_id, run_id, session_id)
            row = await database.read(run_reads.get(run_id, self.lookups.visibility), size="run")
            calls = orjson.loads(row.tools) if row is not None and row.tools else []
            for call in calls:
                if call["tool_call_id"] == tool_call_id:
                    return build_document(call)
            raise errors.NotFound("Tool call not found")

    async def get_run_causes(self, run_id: str, *, db_id: str | None = None) -> Document[RunCauses]:
        async with self.audit("get_run_causes", run_id=run_id):
            database = self.lookups.database(db_id)
            work = read_run_causes(run_id, self.lookups.visibility)
            return Document(await database.read(work))

    async def get_run_model_calls(
        self,
        run_id: str,
        *,
        db_id: str | None = None,
        after: str | None = None,
        limit: int = MAXIMUM_LIMIT,
    ) -> Document[RunModelCalls]:
        async with self.audit("get_run_model_calls", run_id=run_id):
            database = self.lookups.database(db_id)
            paging.check_limit(limit)
            row = await self._read_ended(database, run_id)
            calls = (await database.read(read_model_calls(row), size="run")).list_records()
            ids = [call["id"] for call in calls]
            if after is not None and after not in ids:
                raise errors.NotFound("Model call not found")
            first = 0 if after is None else ids.index(after) + 1
            page = calls[first : first + limit]
            return build_document({"run_id": run_id, "model_calls": page, "total": len(calls)})

    async def get_run_model_call(
        self, run_id: str, call_id: str, *, db_id: str | None = None, cut: int | None = None
    ) -> Document[ModelCallDetail]:
        async with self.audit("get_run_model_call", run_id=run_id, call_id=call_id):
            database = self.lookups.database(db_id)
            paging.check_run_view(RunView(cut=cut))
            row = await self._read_ended(database, run_id)
            call = await database.read(read_model_call(row, call_id), size="large")
            if call is None:
                raise errors.NotFound("Model call not found")
            documents.cut_entries(call["messages"], "content", cut)
            return build_document(call)

    async def _read_ended(self, database: Database, run_id: str) -> RunRow:
        row = await database.read(run_reads.get(run_id, self.lookups.visibility), size="run")
        if row is None:
            raise errors.NotFound("Run not found")
        return row

    async def find_open_runs(self, prefix: str) -> list[RunRow]:
        """Return the runs without a final status whose ids begin with a text, of all databases.

        They are those that the caller can see, at most 100 of each database and status.
        """
        found = list[RunRow]()
        for database in self.hosting.databases.values():
            for status in _OPEN_STATUSES:
                wanted = RunFilter(status=status, id_prefix=prefix, form=SUMMARY_VIEW)
                part = paging.build_slice("runs", Page(MAXIMUM_LIMIT))
                work = lists.list_runs(wanted, self.lookups.visibility, part, database.totals)
                found += (await database.read(work)).rows
        return found

    async def end_client_session(self, session_id: str) -> None:
        """Store that the caller has ended a session of a protocol, for the lifetime of a key."""
        claim = idempotency.claim_key(*self._name_end(session_id), "", session_id, now())
        await self.hosting.databases.system.write(claim)

    async def has_ended_client_session(self, session_id: str) -> bool:
        """Return True if the caller has ended a session with `end_client_session`."""
        claimed = idempotency.is_claimed(*self._name_end(session_id), now())
        return await self.hosting.databases.system.read(claimed)

    def _name_end(self, session_id: str) -> tuple[str, str]:
        # With a space it is never the key of a request.
        return self.principal.subject or "", f"end of {session_id}"


def check_event_number(number: int) -> None:
    """Check the number of an event."""
    if not BEFORE_FIRST_EVENT <= number <= MAXIMUM_EVENT_NUMBER:
        raise errors.ValidationFailed(
            f"last_event_index must be a number from {BEFORE_FIRST_EVENT} to {MAXIMUM_EVENT_NUMBER}"
        )


@unit
def read_run_causes(run_id: str, visibility: Visibility) -> Steps[bytes]:
    """Build the document of the causes of a run and of the runs below it.

    Raises:
        NotFound: the run does not exist or is not visible.
    """
    state = yield from run_reads.get_state(run_id, visibility)
    if state is None:
        raise errors.NotFound("Run not found")
    own = yield from run_reads.get_causes(run_id)
    found = _build_causes(run_id, state.component_type, state.component_id, own)
    level = [run_id]
    for _ in range(MAXIMUM_DEPTH):
        children = yield from run_reads.list_children_causes(level)
        if not children or len(found) >= MAXIMUM_CAUSES:
            break
        for child in children:
            found += _build_causes(*child)
        level = [child[0] for child in children]
    return orjson.dumps({"run_id": run_id, "causes": found[:MAXIMUM_CAUSES]})


def _build_causes(
    run_id: str, kind: str, component_id: str, stored: str | None
) -> list[dict[str, Any]]:
    run = {"run_id": run_id, "component_type": kind, "component_id": component_id}
    return [
        {**run, **cause, "raised_at": format_rfc3339(cause["raised_at"])}
        for cause in orjson.loads(stored or "[]")
    ]
