"""The operations on approvals and on paused runs (docs/contract.md "Approvals")."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentctl import errors
from agentctl.auth import policy
from agentctl.auth.principal import ids_in_scopes, is_action_allowed
from agentctl.interface.operations.approvals import ApprovalsFamily
from agentctl.interface.requests import BEFORE_FIRST_EVENT, StreamEvent
from agentctl.interface.requests.approvals import (
    MAXIMUM_DECISIONS,
    ApprovalFilter,
    ContinueRequest,
    Ruling,
)
from agentctl.records.approvals import (
    ApprovalPage,
    ApprovalRecord,
    ApprovalRow,
    ReceiptRecord,
    build_receipt,
)
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.records.runs import FoundTurn, RunRecord
from agentctl.records.text import dump_checked_json
from agentctl.records.times import format_rfc3339, now
from agentctl.runs.desk.decisions import check_approver, rule, write_decisions
from agentctl.runs.follow.follow import flatten, wait_until_final
from agentctl.runs.life.admission import Idempotency, IdempotentReplay, claim_key
from agentctl.runs.log.event_rows import UNRECORDED_EVENTS
from agentctl.runs.states import is_final
from agentctl.service.audit_log import AppendEntry, AuditedCall
from agentctl.service.documents import documents, paging
from agentctl.service.family import OperationFamily, find_repeated
from agentctl.store.database import Database, Steps, unit
from agentctl.store.listing import Conditions, build_any
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import approvals, events, run_reads
from agentctl.store.repositories.approvals import DecisionChange
from agentctl.store.visibility import EVERYONE, Visibility
from agentctl.work.event_loop import read_after_change


@dataclass(frozen=True, slots=True)
class ContinuedRun:
    """A run that continues."""

    database: Database
    run_id: str

    after: int
    """Number of its last event before it continues."""


class Rulings(OperationFamily):
    """Decisions about approvals: the part that the operations on approvals and on runs share."""

    def _tighten(self, row: ApprovalRow) -> ApprovalRow:
        """Return an approval with the policy of the configuration, if that is stricter now."""
        if row.status != "pending" or row.policy == "other" or row.kind == "input":
            return row
        catalog = self.hosting.catalog
        component = catalog.get(row.component_type, row.component_id)
        if component is None:
            return row
        side = catalog.choose_side(component, row.session_id)
        is_strict = catalog.find_policy(side, row.tool_name) == "other"
        return replace(row, policy="other") if is_strict else row

    async def _list_of_root(self, database: Database, run_id: str) -> list[ApprovalRow]:
        rows = await database.read(approvals.list_of_root(run_id))
        return [self._tighten(row) for row in rows]

    def _build_identity(
        self, place: Sequence[str], request: dict[str, Any], key: str | None
    ) -> Idempotency | None:
        fields = {name: value for name, value in request.items() if value is not None}
        return self.build_idempotency(key, [*place, fields])

    async def _rule(self, row: ApprovalRow, ruling: Ruling) -> DecisionChange:
        hosting = self.hosting
        can_call = hosting.catalog.can_call
        return await rule(row, ruling, self.principal.actor, hosting.settings.limits, can_call)

    async def _write(
        self,
        call: AuditedCall,
        database: Database,
        root_run_id: str,
        changes: Sequence[tuple[str, DecisionChange]],
        identity: Idempotency | None,
    ) -> tuple[list[ApprovalRow], bool] | None:
        """Store decisions with their audit entry.

        Returns:
            The decided approvals, and True if the root run may continue; None for a repeated
            request.
        """
        call.add_resource("run", root_run_id)

        append_entry = await self.prepare_keyed_entry(call, database, identity)
        with call.change():
            try:
                decided_rows, may_continue = await database.write(
                    _write_once(database.outbox, root_run_id, changes, append_entry, identity)
                )
            except IdempotentReplay:
                return None

        database.outbox.wake()
        for row in decided_rows:
            self.hosting.engine.counters.count_decision(row)
        return decided_rows, may_continue

    async def _try_to_continue(
        self, database: Database, run_id: str, dependencies: str | None
    ) -> None:
        # Otherwise the next sweep of a serving process does it.
        with contextlib.suppress(errors.Unavailable):
            await self.hosting.engine.claims.claim(database, run_id, dependencies=dependencies)


class ApprovalOperations(Rulings, ApprovalsFamily):
    """Operations on approvals."""

    def _visible_approvals(self) -> tuple[Visibility, Conditions]:
        """Return what the caller sees: its own approvals, and those about which it decides."""
        conditions = Conditions()
        readable_ids = policy.allowed_ids(self.principal, "get_approvals")
        if readable_ids is not None:
            conditions = conditions.with_any("component_id", sorted(readable_ids))

        decidable_ids = self._find_decidable_ids()
        if decidable_ids is None:
            return EVERYONE, conditions
        if not decidable_ids:
            return self.lookups.visibility, conditions

        text, values = build_any("component_id", sorted(decidable_ids), "decided")
        return EVERYONE, conditions.with_condition(
            f"({text} OR user_id IS NOT DISTINCT FROM cast(:viewer as text))",
            viewer=self.principal.subject,
            **values,
        )

    def _find_decidable_ids(self) -> frozenset[str] | None:
        """Return the components about whose approvals the caller decides; None for all.

        It sees their approvals of all users (docs/contract.md "Data scoping").
        """
        principal = self.principal
        if principal.sees_all_users:
            return None
        if principal.caller is not None:
            # It acts for a user, and sees what the user sees.
            return frozenset()
        if principal.admin or is_action_allowed(principal.scopes, "approvals", "write"):
            return None
        return ids_in_scopes(principal.scopes, "approvals", "write")

    async def get(
        self, kind: ComponentKind, component_id: str, approval_id: str
    ) -> Document[ApprovalRecord]:
        path = {KINDS[kind].id_field: component_id, "approval_id": approval_id}
        async with self.audit(operation_ids(kind).get_approval, **path):
            _, row = await self._find(kind, component_id, approval_id)
            return Document(documents.build_approval_document(row))

    async def get_receipt(
        self, kind: ComponentKind, component_id: str, approval_id: str
    ) -> Document[ReceiptRecord]:
        path = {KINDS[kind].id_field: component_id, "approval_id": approval_id}
        async with self.audit(operation_ids(kind).get_receipt, **path):
            _, row = await self._find(kind, component_id, approval_id)
            if row.status == "pending":
                raise errors.Conflict("The approval is not decided yet")
            key = self.hosting.statement_key()
            if key is None:
                raise errors.Conflict(
                    "The server signs no receipts", hint="set key_file in [audit] of the server"
                )
            content = build_receipt(documents.build_approval_record(row), format_rfc3339(now()))
            receipt = key.sign("approval-receipt", content)
            return build_document(ReceiptRecord(approval_id=row.approval_id, receipt=receipt))

    async def locate(self, operation: str, approval_id: str) -> ApprovalRecord:
        """Return an approval by its id, for an operation whose path does not name its component.

        Raises:
            NotFound: no visible approval has the id, or the scopes of the caller for the operation
                are for other components.
        """
        ids = policy.allowed_ids(self.principal, operation)

        def fits(row: ApprovalRow) -> bool:
            is_granted = ids is None or row.component_id in ids
            return is_granted and self._may_see(row)

        _, row = await self._search(approval_id, fits)
        return documents.build_approval_record(row)

    async def list_of_run(
        self, kind: ComponentKind, component_id: str, run_id: str, session_id: str | None
    ) -> tuple[str, list[ApprovalRecord]]:
        """Return the status of a run, and the approvals of it and of its members, oldest first."""
        database, state = await self.lookups.find_run(kind, component_id, run_id, session_id)
        rows = await self._list_of_root(database, run_id)
        return state.status, [documents.build_approval_record(row) for row in rows]

    async def require(self, kind: ComponentKind, component_id: str, approval_id: str) -> None:
        """Raise NotFound unless the caller can see the approval."""
        await self._find(kind, component_id, approval_id)

    async def find_asked(self, approval_id: str) -> ApprovalRecord:
        """Return an approval, within the runs that the caller can see."""
        visibility = self.lookups.visibility
        _, row = await self._search(approval_id, lambda row: visibility.sees(row.user_id))
        return documents.build_approval_record(row)

    async def list_pending(self, run_id: str, turn: FoundTurn) -> list[ApprovalRecord]:
        """Return what a turn and its members wait for, oldest first."""
        rows = await self._list_of_root(self.hosting.databases[turn.db_id], run_id)
        return [documents.build_approval_record(row) for row in rows if row.status == "pending"]

    async def _find(
        self, kind: ComponentKind, component_id: str, approval_id: str
    ) -> tuple[Database, ApprovalRow]:
        def fits(row: ApprovalRow) -> bool:
            is_of_component = (row.component_type, row.component_id) == (kind, component_id)
            return is_of_component and self._may_see(row)

        return await self._search(approval_id, fits)

    def _may_see(self, row: ApprovalRow) -> bool:
        """Return True if the caller decides about the approval, or is the user of its run."""
        decidable_ids = self._find_decidable_ids()
        if decidable_ids is None or row.component_id in decidable_ids:
            return True
        return Visibility(False, self.principal.subject).sees(row.user_id)

    async def _search(
        self, approval_id: str, fits: Callable[[ApprovalRow], bool]
    ) -> tuple[Database, ApprovalRow]:
        """Return an approval and its database.

        Args:
            fits: returns True if the caller may see the approval, and means this one.

        Raises:
            NotFound: there is none that fits.
        """
        # A component that had another database, or is not configured any more, may have left it in
        # any of them.
        for database in self.hosting.databases.values():
            row = await database.read(approvals.get(approval_id, EVERYONE))
            if row is not None and fits(row):
                return database, self._tighten(row)
        raise errors.NotFound("Approval not found")

    async def decide(
        self,
        kind: ComponentKind,
        component_id: str,
        approval_id: str,
        ruling: Ruling,
        idempotency_key: str | None = None,
    ) -> Document[ApprovalRecord]:
        path = {KINDS[kind].id_field: component_id, "approval_id": approval_id}
        async with self.audit(operation_ids(kind).decide_approval, **path) as call:
            database, row = await self._find(kind, component_id, approval_id)
            names = frozenset({self.principal.actor, self.principal.identity})
            check_approver(row, names, own=self.hosting.settings.approvals.own)

            content = replace(ruling, approval_id=None, tool_call_id=None)
            identity = self._build_identity(
                [kind, component_id, approval_id], asdict(content), idempotency_key
            )

            if not await find_repeated(database, identity):
                change = await self._rule(row, ruling)
                result = await self._write(
                    call, database, row.root_run_id, [(approval_id, change)], identity
                )
                if result is not None:
                    (decided_row,), may_continue = result
                    if may_continue and self.principal.via == "http":
                        continuation = self._try_to_continue(database, row.root_run_id, None)
                        self.hosting.background.start(continuation)
                    return Document(documents.build_approval_document(decided_row))

            # The request is a repeat of one that has decided: its response is the same.
            call.omit_entry()
            _, row = await self._find(kind, component_id, approval_id)
            return Document(documents.build_approval_document(row))

    async def list(self, filter: ApprovalFilter) -> Document[ApprovalPage]:
        async with self.audit("get_approvals"):
            database = self.lookups.database(filter.db_id)
            paging.check_approval_filter(filter)
            part = paging.build_slice("approvals", filter.page)
            work = approvals.list_page(filter, *self._visible_approvals(), part, database.totals)
            page = await database.read(work, size="large")
            items = map(documents.build_approval_document, map(self._tighten, page.rows))
            return Document(documents.build_page_document("approvals", items, filter.page, page))


class ContinuationOperations(Rulings):
    """Operations that continue a paused run with decisions of its user."""

    async def continue_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ContinueRequest
    ) -> Document[RunRecord]:
        continued = await self.begin_continuation(kind, component_id, run_id, request)
        return await self.read_continuation(kind, component_id, run_id, request, continued)

    async def stream_continued(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ContinueRequest
    ) -> AsyncIterator[StreamEvent]:
        continued = await self.begin_continuation(kind, component_id, run_id, request)
        if continued is None:
            return
        async with contextlib.aclosing(flatten(self.follow_continuation(continued))) as following:
            async for event in following:
                yield event

    async def begin_continuation(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ContinueRequest
    ) -> ContinuedRun | None:
        """Store the decisions of a request, and start the next leg of the run if it may continue.

        Returns:
            None if the run still waits for other decisions.

        Raises:
            FourEyes: an approver has to decide.
            Conflict: the run has ended or is part of another run, an approval was decided or has
                expired, or the call is another call.
        """
        path = {KINDS[kind].id_field: component_id, "run_id": run_id}
        async with self.audit(operation_ids(kind).continue_run, **path) as call:
            database, state = await self.lookups.find_run(kind, component_id, run_id, None)

            dependencies = dump_checked_json(
                "dependencies", request.dependencies, self.hosting.settings.limits.state_bytes
            )
            body = asdict(request)
            identity = self._build_identity(
                [kind, component_id, run_id], body, body.pop("idempotency_key")
            )

            rows = await self._list_of_root(database, run_id)
            if await find_repeated(database, identity):
                call.omit_entry()
                return await self._find_continued(database, run_id, BEFORE_FIRST_EVENT)
            if state.parent_run_id is not None:
                raise errors.Conflict(
                    f"The run is part of run {state.parent_run_id}: continue that one"
                )

            changes = [
                (row.approval_id, await self._rule(row, decision))
                for row, decision in _match_decisions(rows, request.decisions)
            ]
            if not changes and is_final(state.status):
                raise errors.Conflict(f"The run has ended as {state.status} already")

            last_stored_seq = await database.read(events.get_last_seq(run_id))
            after = max(last_stored_seq, UNRECORDED_EVENTS - 1)
            if changes:
                result = await self._write(call, database, run_id, changes, identity)
                if result is None:
                    # A repeated request may have missed any event.
                    after = BEFORE_FIRST_EVENT
            return await read_after_change(
                lambda: self._find_continued(database, run_id, after, dependencies), run_id
            )

    async def _find_continued(
        self, database: Database, run_id: str, after: int, dependencies: str | None = None
    ) -> ContinuedRun | None:
        """Start the next leg of a run if it may continue; None if it is paused."""
        state = await database.read(run_reads.get_state(run_id))
        if state is None:
            raise errors.NotFound("Run not found")
        if state.status == "PAUSED":
            return None
        if state.status == "PENDING":
            await self._try_to_continue(database, run_id, dependencies)
        return ContinuedRun(database, run_id, after)

    def follow_continuation(self, continued: ContinuedRun) -> AsyncGenerator[list[StreamEvent]]:
        """Yield the events of a run that continues, in portions."""
        return self.follow_events(
            continued.database, continued.run_id, continued.after, is_started=True
        )

    async def read_continuation(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        request: ContinueRequest,
        continued: ContinuedRun | None,
    ) -> Document[RunRecord]:
        """Return the record of a run after its continuation; with `background` at once."""

        async def read() -> Document[RunRecord]:
            database, _ = await self.lookups.find_run(kind, component_id, run_id, None)
            if continued is not None and not request.background:
                hosting = self.hosting
                await wait_until_final(hosting.engine, database, hosting.changes, run_id)
            return await self.lookups.read_run(database, run_id)

        return await read_after_change(read, run_id)


def _match_decisions(
    rows: Sequence[ApprovalRow], decisions: Sequence[Ruling]
) -> list[tuple[ApprovalRow, Ruling]]:
    """Return each decision with its approval; a user decides about approvals of users only.

    Raises:
        ValidationFailed: a decision names no approval or several, or two name the same.
        NotFound: an approval does not exist.
        FourEyes: an approver has to decide.
    """
    if len(decisions) > MAXIMUM_DECISIONS:
        raise errors.ValidationFailed(f"decisions must be at most {MAXIMUM_DECISIONS}")

    matches: dict[str, tuple[ApprovalRow, Ruling]] = {}
    for decision in decisions:
        row = _find_approval(rows, decision)
        if row.approval_id in matches:
            raise errors.ValidationFailed(f"Two decisions about approval {row.approval_id}")
        if row.policy != "user":
            raise errors.FourEyes("The approval needs a decision of an approver")
        matches[row.approval_id] = (row, decision)
    return list(matches.values())


def _find_approval(rows: Sequence[ApprovalRow], decision: Ruling) -> ApprovalRow:
    """Return the approval that a decision names; of several with one call, the pending one."""
    if (decision.approval_id is None) == (decision.tool_call_id is None):
        raise errors.ValidationFailed("A decision must have approval_id or tool_call_id")

    if decision.approval_id is not None:
        matching = [row for row in rows if row.approval_id == decision.approval_id]
    else:
        matching = [row for row in rows if row.tool_call_id == decision.tool_call_id]

    pending_matches = [row for row in matching if row.status == "pending"]
    if len(pending_matches) > 1:
        raise errors.ValidationFailed("tool_call_id names several approvals: use approval_id")

    if not matching:
        raise errors.NotFound("Approval not found")

    return (pending_matches or matching)[-1]


@unit
def _write_once(
    outbox: Outbox,
    root_run_id: str,
    changes: Sequence[tuple[str, DecisionChange]],
    append_entry: AppendEntry | None,
    identity: Idempotency | None,
) -> Steps[tuple[list[ApprovalRow], bool]]:
    if identity is not None:
        yield from claim_key(root_run_id, identity)
    return (yield from write_decisions(outbox, root_run_id, changes, append_entry))
