"""Reads of parts of a run: its events and its tool calls (docs/contract.md "Runs")."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import orjson

from agentctl import errors
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.records.runs import ToolCallRecord
from agentctl.requests import BEFORE_FIRST_EVENT, MAXIMUM_EVENT_NUMBER, ResumeRequest, StreamEvent
from agentctl.runs.follow import flatten, follow_run
from agentctl.service.family import OperationFamily
from agentctl.store.repositories import run_reads


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

        Raises:
            NotFound: there is no such run of this component and session, or it is not visible.
            ValidationFailed: the event number is out of range.
        """
        path = {KINDS[kind].id_field: component_id, "run_id": run_id}
        async with self.audit(operation_ids(kind).follow_run, **path):
            database = await self.lookups.run_database(
                kind, component_id, run_id, request.session_id
            )
            check_event_number(request.after)
            hosting = self.hosting
            return follow_run(hosting.engine, database, hosting.changes, run_id, request.after)

    async def get_tool_call(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        tool_call_id: str,
        *,
        session_id: str | None = None,
    ) -> Document[ToolCallRecord]:
        """Return one tool call of a run, with its whole result.

        Raises:
            NotFound: there is no such run or call, the run is not visible, or it has not ended.
        """
        path = {KINDS[kind].id_field: component_id, "run_id": run_id, "tool_call_id": tool_call_id}
        async with self.audit(operation_ids(kind).get_tool_call, **path):
            database = await self.lookups.run_database(kind, component_id, run_id, session_id)
            row = await database.read(run_reads.get(run_id, self.lookups.visibility), size="run")
            calls = orjson.loads(row.tools) if row is not None and row.tools else []
            for call in calls:
                if call["tool_call_id"] == tool_call_id:
                    return build_document(call)
            raise errors.NotFound("Tool call not found")


def check_event_number(number: int) -> None:
    """Check the number of an event.

    Raises:
        ValidationFailed: the number is out of range.
    """
    if not BEFORE_FIRST_EVENT <= number <= MAXIMUM_EVENT_NUMBER:
        raise errors.ValidationFailed(
            f"last_event_index must be a number from {BEFORE_FIRST_EVENT} to {MAXIMUM_EVENT_NUMBER}"
        )
