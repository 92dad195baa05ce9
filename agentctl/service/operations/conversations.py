"""Conversations of other interfaces, which are sessions: pending approvals, the state, the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentctl import errors
from agentctl.auth.policy import authorize_call
from agentctl.records.approvals import ApprovalRecord, ApprovalRow
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.records.runs import RunRow
from agentctl.records.times import now
from agentctl.service.documents.documents import build_approval_record
from agentctl.service.family import OperationFamily
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import approvals, idempotency, run_reads, sessions


class ConversationOperations(OperationFamily):
    """Sessions as callers of other interfaces use them, who run their component.

    The methods are no operations: they are parts of the requests of those interfaces.
    """

    async def find_waiting(
        self,
        kind: ComponentKind,
        component_id: str,
        session_id: str,
        approval_ids: Sequence[str] = (),
    ) -> list[ApprovalRecord]:
        """Return the pending approvals of the visible runs of a component in a session.

        Args:
            approval_ids: approvals to return in any status, if they are of these runs.

        Raises:
            Forbidden: the caller may not continue runs of the component.
        """
        path = {KINDS[kind].id_field: component_id}
        authorize_call(self.principal, operation_ids(kind).continue_run, path)

        database = self.lookups.component_database(kind, component_id)
        rows = await database.read(self._find_rows(session_id, approval_ids))

        roots_of_component = set[str]()
        for root_id in {row.root_run_id for row in rows}:
            state = await database.read(run_reads.get_state(root_id, self.lookups.visibility))
            if state is None:
                continue
            if (state.component_type, state.component_id) == (kind, component_id):
                roots_of_component.add(root_id)

        return [
            build_approval_record(row)
            for row in rows
            if row.root_run_id in roots_of_component and row.session_id == session_id
        ]

    @unit
    def _find_rows(self, session_id: str, approval_ids: Sequence[str]) -> Steps[list[ApprovalRow]]:
        visibility = self.lookups.visibility
        pending_rows = yield from approvals.list_pending_of_session(session_id, visibility)
        rows = {row.approval_id: row for row in pending_rows}

        for approval_id in approval_ids:
            if approval_id in rows:
                continue
            row = yield from approvals.get(approval_id, visibility)
            if row is not None:
                rows[approval_id] = row

        return list(rows.values())

    async def find_newest_run(
        self, kind: ComponentKind, component_id: str, session_id: str
    ) -> RunRow | None:
        """Return the newest run of a session, without its large texts.

        None if the caller cannot see it, or if it is of another component.
        """
        database = self.lookups.component_database(kind, component_id)
        run = await database.read(self._find_newest(session_id))
        if run is None or (run.component_type, run.component_id) != (kind, component_id):
            return None
        return run

    @unit
    def _find_newest(self, session_id: str) -> Steps[RunRow | None]:
        newest = yield from run_reads.list_in_session(
            session_id, limit=1, top_level=True, order="desc", summary=True
        )
        if not newest:
            return None
        return (yield from run_reads.get(newest[0].run_id, self.lookups.visibility, summary=True))

    async def read_state(
        self, kind: ComponentKind, component_id: str, session_id: str
    ) -> dict[str, Any] | None:
        """Return the state of a session; None if the caller may not read it."""
        try:
            authorize_call(self.principal, "get_session_by_id", {"session_id": session_id})
        except errors.Forbidden:
            return None
        database = self.lookups.component_database(kind, component_id)
        row = await database.read(sessions.get(session_id, self.lookups.visibility))
        if row is None:
            return None
        return sessions.parse_state(row.session_state)

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
