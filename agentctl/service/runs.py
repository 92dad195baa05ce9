"""What a caller can do with runs (contract.md 5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from agentctl import errors
from agentctl.auth.policy import operations_of
from agentctl.operations import (
    MAXIMUM_CANCEL_WAIT,
    MAXIMUM_REASON,
    CancelRequest,
    Page,
    RunFilter,
    RunRequest,
    StreamEvent,
)
from agentctl.records.document import Document
from agentctl.records.ids import new_id
from agentctl.records.kinds import KINDS, Kind
from agentctl.records.runs import CancelRecord, RunPage, RunRecord
from agentctl.runs.admission import Submission
from agentctl.runs.cancel import cancel
from agentctl.runs.engine import CLIENT_LEFT
from agentctl.runs.live import LiveRun
from agentctl.runs.states import cancelled
from agentctl.service import documents, paging
from agentctl.service.access import Access, checked_session_id, checked_text
from agentctl.store import runs
from agentctl.store.database import Database, Work
from agentctl.store.runs import RunRow

__all__ = ["RunOperations", "run_documents"]

LEAVE_SECONDS = 1.0
"""How long a caller that goes away is held for the end of the run that it stops."""


class RunOperations(Access):
    """Runs of every kind of component."""

    async def create_run(
        self, kind: Kind, component_id: str, request: RunRequest
    ) -> Document[RunRecord]:
        """Start a run and wait for its end; with `background` only for its row.

        A caller that goes away stops its run, unless it is a background run or
        `server.on_disconnect` is `detach`.
        """
        run = await self._start(kind, component_id, request)
        if not request.background:
            try:
                await asyncio.shield(run.ended)
            finally:
                await self._leave(run, request)
        return Document(await run.database.read(self._document(run.run_id)))

    async def stream_run(
        self, kind: Kind, component_id: str, request: RunRequest
    ) -> AsyncIterator[StreamEvent]:
        """Start a run and follow it to its end. What is refused is raised before any event."""
        run = await self._start(kind, component_id, request)
        try:
            async for event in run.stream.follow():
                yield event
        finally:
            await self._leave(run, request)

    async def _leave(self, run: LiveRun, request: RunRequest) -> None:
        """The caller of a run is going: stop it, unless it has ended or may go on."""
        if run.ended.done() or self._goes_on(request):
            return
        run.stop(cancelled(self.principal.actor, CLIENT_LEFT))
        await asyncio.wait([run.ended], timeout=LEAVE_SECONDS)

    def _goes_on(self, request: RunRequest) -> bool:
        """Whether a run outlives the interest of its caller (contract.md 5)."""
        detaches = self.hosting.settings.server.on_disconnect == "detach"
        return request.background or (detaches and self.principal.via == "http")

    async def _start(self, kind: Kind, component_id: str, request: RunRequest) -> LiveRun:
        self.require(operations_of(kind).create_run, **{KINDS[kind].id_field: component_id})
        component = self.component(kind, component_id)
        self._check_message(request.message)
        session_id = request.session_id
        if session_id is None:
            session_id = self.principal.session_id or new_id()
        submission = Submission(
            component=component,
            session_id=checked_session_id(session_id),
            user_id=self.owner(request.user_id),
            message=request.message,
            background=request.background,
            goes_on=self._goes_on(request),
            actor=self.principal.actor,
            visibility=self.usable(request.user_id),
        )
        return await self.hosting.engine.submit(submission)

    def _check_message(self, message: str) -> None:
        if not message:
            raise errors.ValidationFailed("message must not be empty")
        checked_text("message", message)
        limit = self.hosting.settings.limits.message_bytes
        if len(message.encode()) > limit:
            raise errors.TooLarge(f"message must be at most {limit} bytes")

    async def get_runs(self, filter: RunFilter) -> Document[RunPage]:
        """A page of the runs that the caller sees, across sessions, newest first."""
        self.require("get_runs")
        return await self._page(self.database(filter.db_id), filter)

    async def list_component_runs(
        self, kind: Kind, component_id: str, filter: RunFilter
    ) -> Document[RunPage]:
        """A page of the runs of one component that the caller sees."""
        self.require(operations_of(kind).list_runs, **{KINDS[kind].id_field: component_id})
        component = self.component(kind, component_id)
        narrowed = replace(filter, component_type=kind, component_id=component_id)
        return await self._page(self.database(filter.db_id or component.database), narrowed)

    async def _page(self, database: Database, filter: RunFilter) -> Document[RunPage]:
        if filter.page.sort_by != "created_at":
            raise errors.ValidationFailed("sort_by must be created_at: runs have no other order")
        if filter.live and filter.status is not None:
            raise errors.ValidationFailed("live and status exclude each other: give one of them")
        query = runs.RunQuery(
            visibility=self.visibility,
            status=filter.status,
            component_type=filter.component_type,
            component_id=filter.component_id,
            session_id=filter.session_id,
            user_id=filter.user_id,
            sort_order=filter.page.sort_order,
            limit=filter.page.limit,
            offset=paging.offset_of(filter.page),
            after=paging.decode_cursor(filter.page),
            live=filter.live,
            created_after=filter.created_after,
            created_before=filter.created_before,
        )
        return Document(await database.read(_page(query, filter.page), large=True))

    async def get_run(self, run_id: str, *, db_id: str | None = None) -> Document[RunRecord]:
        """One run, wherever it is."""
        self.require("get_run", run_id=run_id)
        return Document(await self.database(db_id).read(self._document(run_id)))

    async def get_component_run(
        self, kind: Kind, component_id: str, run_id: str, *, session_id: str | None = None
    ) -> Document[RunRecord]:
        """One run of a component."""
        names = KINDS[kind]
        self.require(
            operations_of(kind).get_run, **{names.id_field: component_id, "run_id": run_id}
        )
        database = await self.require_run(kind, component_id, run_id, session_id)
        return Document(await database.read(self._document(run_id)))

    async def require_run(
        self, kind: Kind, component_id: str, run_id: str, session_id: str | None
    ) -> Database:
        """The database of a run of this component, and of this session when one is given.

        Raises:
            NotFound: it is none of theirs, or not the caller's.
        """
        database = self.database(self.component(kind, component_id).database)
        found = await database.read(runs.state(run_id, self.visibility))
        if (
            found is None
            or (found.component_type, found.component_id) != (kind, component_id)
            or (session_id is not None and found.session_id != session_id)
        ):
            raise errors.NotFound("Run not found")
        return database

    def _document(self, run_id: str) -> Work[bytes]:
        """The run as the caller may see it.

        Raises:
            NotFound: it is not there, or not the caller's.
        """
        row = yield from runs.get(run_id, self.visibility)
        if row is None:
            raise errors.NotFound("Run not found")
        (document,) = yield from run_documents([row])
        return document

    async def cancel_run(
        self, kind: Kind, component_id: str, run_id: str, request: CancelRequest
    ) -> Document[CancelRecord]:
        """Ask a run to stop, wait for its end, and say which of the two happened.

        Raises:
            BadRequest: no session is given by a caller who is no administrator (spec.md
                "Authentication" 8).
            NotFound: not a run of this component and session, or not the caller's.
        """
        names = KINDS[kind]
        self.require(
            operations_of(kind).cancel_run, **{names.id_field: component_id, "run_id": run_id}
        )
        session_id = request.session_id or self.principal.session_id
        if session_id is None and not self.principal.admin:
            raise errors.BadRequest("session_id is required to cancel a run")
        database = await self.require_run(kind, component_id, run_id, session_id)
        _check_cancel(request)
        done = await cancel(
            self.hosting.engine,
            database,
            run_id,
            actor=self.principal.actor,
            reason=request.reason,
            wait=request.wait,
        )
        return Document(documents.cancel_document(done))


def run_documents(rows: Sequence[RunRow]) -> Work[list[bytes]]:
    """The documents of some runs, each with the ids of the runs that it asked for."""
    members = yield from runs.children([row.run_id for row in rows])
    return [documents.run_document(row, members[row.run_id]) for row in rows]


def _page(query: runs.RunQuery, page: Page) -> Work[bytes]:
    found = yield from runs.page(query)
    items = yield from run_documents(found.rows)
    return documents.page_document(items, page, found)


def _check_cancel(request: CancelRequest) -> None:
    if not 0 <= request.wait <= MAXIMUM_CANCEL_WAIT:
        raise errors.ValidationFailed(
            f"wait must be a number of seconds from 0 to {MAXIMUM_CANCEL_WAIT:g}"
        )
    if request.reason is not None:
        checked_text("reason", request.reason)
        if len(request.reason) > MAXIMUM_REASON:
            raise errors.ValidationFailed(f"reason must be at most {MAXIMUM_REASON} characters")
