"""Operations on the retention of sessions (docs/contract.md "Retention")."""

from __future__ import annotations

from typing import cast

import orjson

from agentctl import errors
from agentctl.interface.requests import DEFAULT_LOCATOR, MAXIMUM_REASON_LENGTH, Page, SessionLocator
from agentctl.interface.requests.administration import (
    MAXIMUM_IDLE_DAYS,
    MAXIMUM_PRUNED,
    IdleFilter,
    PruneRequest,
)
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.sessions import HoldRecord, IdlePage, IdleSession, IdleState, PruneRecord
from agentctl.records.text import check_text
from agentctl.records.times import DAY, format_rfc3339, now
from agentctl.service.documents import paging
from agentctl.service.family import OperationFamily
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import retention
from agentctl.store.repositories.retention import IdleRow, IdleSessions


class RetentionOperations(OperationFamily):
    """Holds of sessions, and the removal of idle sessions."""

    async def list_idle(self, filter: IdleFilter) -> Document[IdlePage]:
        async with self.audit("get_idle_sessions"):
            database = self.lookups.database(filter.db_id)
            paging.check_filter(filter)

            page = Page(filter.limit, 1, filter.cursor, "updated_at", "asc")
            part = paging.build_slice("idle", page)
            choice = IdleSessions(
                await _find_time(database, filter.idle_days),
                filter.component_type,
                filter.component_id,
                visibility=self.lookups.visibility,
            )

            work = retention.list_idle(choice, filter.limit, part.after, measured=True)
            rows = await database.read(work, size="large")

            cursor = paging.encode_cursor("idle", page, rows)
            meta = paging.build_cursor_meta(cursor, rows.searched_until)
            return build_document(IdlePage(data=[*map(_build_idle, rows.rows)], meta=meta))

    async def prune(self, request: PruneRequest) -> Document[PruneRecord]:
        async with self.audit("prune_sessions") as call:
            database = self.lookups.database(request.db_id)

            if not 1 <= len(request.session_ids) <= MAXIMUM_PRUNED:
                raise errors.ValidationFailed(f"session_ids must hold 1 to {MAXIMUM_PRUNED} ids")
            for index, session_id in enumerate(request.session_ids):
                check_text(f"session_ids[{index}]", session_id)

            before = await _find_time(database, request.idle_days)
            session_ids = sorted(set(request.session_ids))

            call.set_batch("sessions", session_ids)
            work = retention.remove_sessions(
                session_ids, self.lookups.visibility, idle_before=before
            )
            removal = await call.write_batch(database, work, lambda pruned: pruned["removed"])
            return build_document(removal)

    async def hold(
        self, session_id: str, reason: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[HoldRecord]:
        async with self.audit("hold_session", session_id=session_id) as call:
            database = self.lookups.session_database(where)
            hold = await call.write(database, self._hold(session_id, where, reason))
            return Document(hold.encode())

    async def release(self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR) -> None:
        async with self.audit("release_session", session_id=session_id) as call:
            database = self.lookups.session_database(where)
            await call.write(database, self._release(session_id, where))

    @unit
    def _hold(self, session_id: str, where: SessionLocator, reason: str) -> Steps[str]:
        row = yield from self.lookups.session(session_id, where, lock=True)

        if not reason.strip() or len(reason) > MAXIMUM_REASON_LENGTH:
            raise errors.ValidationFailed(f"reason must be 1 to {MAXIMUM_REASON_LENGTH} characters")
        check_text("reason", reason)

        if row.hold is not None:
            raise errors.Conflict(
                f"Session {session_id} is held already",
                hint="`agentctl sessions get` shows its hold; release it before another one",
            )

        record = HoldRecord(
            held_at=format_rfc3339(now()), held_by=self.principal.identity, reason=reason
        )
        hold = orjson.dumps(record).decode()
        yield from retention.set_hold(session_id, hold)
        return hold

    @unit
    def _release(self, session_id: str, where: SessionLocator) -> Steps[None]:
        row = yield from self.lookups.session(session_id, where, lock=True)
        if row.hold is None:
            raise errors.Conflict(f"Session {session_id} is not held")
        yield from retention.set_hold(session_id, None)


async def _find_time(database: Database, days: int) -> int:
    """Return the time of some days ago, by the earlier of two clocks."""
    if not 1 <= days <= MAXIMUM_IDLE_DAYS:
        raise errors.ValidationFailed(f"idle_days must be a number from 1 to {MAXIMUM_IDLE_DAYS}")
    return min(now(), await database.clock()) - days * DAY


def _build_idle(row: IdleRow) -> IdleSession:
    kind = cast(ComponentKind, row.session_type)
    ids: dict[str, str | None] = {names.id_field: None for names in KINDS.values()}
    ids[KINDS[kind].id_field] = row.component_id

    state: IdleState = "idle"
    if row.is_held:
        state = "held"
    elif row.is_busy:
        state = "busy"

    return IdleSession(
        session_id=row.session_id,
        session_type=kind,
        agent_id=ids["agent_id"],
        team_id=ids["team_id"],
        workflow_id=ids["workflow_id"],
        user_id=row.user_id,
        run_count=row.run_count,
        bytes=row.size,
        updated_at=format_rfc3339(row.updated_at),
        state=state,
    )
