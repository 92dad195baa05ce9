"""The operations that create and end halts (docs/halts.md); the reads are in `reads.halts`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import get_args

from agentctl import errors
from agentctl.interface.operations.halts import HaltsFamily
from agentctl.interface.requests import MAXIMUM_LIMIT, MAXIMUM_REASON_LENGTH, Page, RunFilter
from agentctl.interface.requests.halts import MAXIMUM_SCOPE_ID_LENGTH, NewHalt
from agentctl.records.document import Document, build_document
from agentctl.records.halts import HaltScope, NewHaltRecord
from agentctl.records.kinds import KINDS
from agentctl.records.text import check_text, new_id
from agentctl.records.times import now, parse_rfc3339
from agentctl.runs.gate.halting import create_halt, end_halt
from agentctl.service.documents import paging
from agentctl.service.family import OperationFamily
from agentctl.service.reads.halts import HaltReads, build_halt_record
from agentctl.store.database import Database
from agentctl.store.repositories import halts, lists
from agentctl.store.repositories.halts import HaltRow
from agentctl.store.visibility import EVERYONE

_WITHOUT_RUNS = ("tool", "model")
"""The scopes that no run belongs to as a whole."""

PARALLEL_CANCELS = 16
"""Number of runs whose cancel is requested at the same time."""


class HaltOperations(HaltReads, OperationFamily, HaltsFamily):
    """Operations on halts."""

    async def create(self, halt: NewHalt) -> Document[NewHaltRecord]:
        async with self.audit("create_halt") as call:
            row = self._build_row(halt)
            call.add_created("halt", row.halt_id)
            if row.scope_id is not None:
                call.add_resource(row.scope, row.scope_id)

            database = self.hosting.databases.system
            row = await call.write(database, create_halt(database.outbox, row))
            database.outbox.wake()
            await self.hosting.gate.halts.wait_until_obeyed(row.change_number, self.hosting.monitor)

            cancelled = 0
            if halt.stop_running:
                cancelled = await self._cancel_runs(row)
            return build_document(NewHaltRecord(**build_halt_record(row), cancelled_runs=cancelled))

    async def end(self, halt_id: str) -> None:
        async with self.audit("end_halt", halt_id=halt_id) as call:
            database = self.hosting.databases.system
            stored_row = await database.read(halts.get(halt_id))
            if stored_row is None:
                raise errors.NotFound("Halt not found")
            if stored_row.ended_at is not None:
                raise _build_ended(stored_row)

            work = end_halt(database.outbox, halt_id, self.principal.identity)
            if await call.write(database, work) is None:
                raise _build_ended(stored_row)
            database.outbox.wake()
            await self.hosting.gate.halts.refresh()

    def _build_row(self, halt: NewHalt) -> HaltRow:
        """Check a new halt.

        Raises:
            ValidationFailed: a value is missing, not allowed, or excludes another one.
            NotFound: the component or the model is not configured.
        """
        if halt.scope not in get_args(HaltScope):
            raise errors.ValidationFailed(f"scope must be one of: {', '.join(get_args(HaltScope))}")
        self._check_scope_id(halt)

        check_text("reason", halt.reason)
        if not 1 <= len(halt.reason.strip()) <= MAXIMUM_REASON_LENGTH:
            raise errors.ValidationFailed(f"reason must be 1 to {MAXIMUM_REASON_LENGTH} characters")
        if halt.stop_running and halt.scope in _WITHOUT_RUNS:
            raise errors.ValidationFailed(
                f"stop_running cannot be used with scope {halt.scope}: no run belongs to it as a"
                " whole"
            )

        at = now()
        return HaltRow(
            halt_id=new_id(),
            scope=halt.scope,
            scope_id=halt.scope_id,
            reason=halt.reason.strip(),
            stop_running=int(halt.stop_running),
            created_by=self.principal.identity,
            created_at=at,
            until=None if halt.until is None else _parse_until(halt.until, at),
        )

    def _check_scope_id(self, halt: NewHalt) -> None:
        if halt.scope == "all":
            if halt.scope_id is not None:
                raise errors.ValidationFailed("scope_id cannot be used with scope all")
            return

        if halt.scope_id is None or not 1 <= len(halt.scope_id) <= MAXIMUM_SCOPE_ID_LENGTH:
            raise errors.ValidationFailed(
                f"scope_id must be 1 to {MAXIMUM_SCOPE_ID_LENGTH} characters with scope"
                f" {halt.scope}"
            )
        check_text("scope_id", halt.scope_id)

        # A wrong id would halt nothing, and look as if it did.
        for kind in KINDS:
            if halt.scope == kind:
                self.lookups.component(kind, halt.scope_id)
        if halt.scope == "model":
            models = {model.id for model in self.hosting.settings.models}
            if halt.scope_id not in models:
                raise errors.NotFound("Model not found")

    async def _cancel_runs(self, row: HaltRow) -> int:
        """Request the cancel of the runs in the scope of a halt; return their number."""
        cancelled = 0
        for database in self.hosting.databases.values():
            run_ids = await self._list_live_runs(database, row)
            for first in range(0, len(run_ids), PARALLEL_CANCELS):
                batch = run_ids[first : first + PARALLEL_CANCELS]
                outcomes = await asyncio.gather(
                    *(self._cancel_run(database, run_id, row) for run_id in batch)
                )
                cancelled += outcomes.count(True)
        return cancelled

    async def _list_live_runs(self, database: Database, row: HaltRow) -> list[str]:
        """Return the runs in the scope of a halt that execute, or wait for their turn."""
        live_runs = RunFilter(live=True, page=Page(limit=MAXIMUM_LIMIT))
        if row.scope == "user":
            live_runs = replace(live_runs, user_id=row.scope_id)
        for kind in KINDS:
            if row.scope == kind:
                live_runs = replace(live_runs, component_type=kind, component_id=row.scope_id)

        run_ids: list[str] = []
        while True:
            part = paging.build_slice("runs", live_runs.page)
            work = lists.list_runs(live_runs, EVERYONE, part, database.totals, None)
            page = await database.read(work, size="large")
            run_ids += [run.run_id for run in page.rows]
            cursor = paging.encode_cursor("runs", live_runs.page, page)
            if cursor is None:
                return run_ids
            live_runs = replace(live_runs, page=replace(live_runs.page, cursor=cursor))

    async def _cancel_run(self, database: Database, run_id: str, row: HaltRow) -> bool:
        """Request the cancel of a run; return False if it has ended or was deleted meanwhile."""
        try:
            result = await self.hosting.canceller.cancel(
                database,
                run_id,
                actor=self.principal.actor,
                reason=f"Halted: {row.reason}"[:MAXIMUM_REASON_LENGTH],
                wait=0,
            )
        except errors.NotFound:
            return False
        return result.outcome != "already_final"


def _build_ended(row: HaltRow) -> errors.Conflict:
    return errors.Conflict(f"The halt {row.halt_id} has ended already")


def _parse_until(text: str, at: int) -> int:
    """Parse the end of a halt that begins at a time."""
    try:
        until = parse_rfc3339(text)
    except ValueError as problem:
        raise errors.ValidationFailed(f"until is {problem}") from None
    if until <= at:
        raise errors.ValidationFailed("until must be in the future")
    return until
