"""What a caller can do with runs (contract.md 5)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import replace

import orjson

from agentctl import errors
from agentctl.auth.policy import operation_ids
from agentctl.operations import (
    BEFORE_FIRST_EVENT,
    MAXIMUM_CANCEL_WAIT,
    MAXIMUM_EVENT_NUMBER,
    MAXIMUM_REASON_LENGTH,
    CancelRequest,
    Page,
    ResumeRequest,
    RunFilter,
    RunRequest,
    StreamEvent,
)
from agentctl.records.document import Document
from agentctl.records.ids import is_idempotency_key, new_id
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.runs import CancelRecord, RunPage, RunRecord
from agentctl.records.times import now
from agentctl.runs.admission import Idempotency, Submission
from agentctl.runs.engine import CLIENT_DISCONNECTED, EarlierRun
from agentctl.runs.follow import follow_run, wait_until_final
from agentctl.runs.live import LiveRun
from agentctl.runs.states import cancelled
from agentctl.service import documents, paging
from agentctl.service.access import Access, check_session_id, check_text, check_texts
from agentctl.service.audit_log import AppendEntry, AuditedCall
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import idempotency, runs
from agentctl.store.repositories.runs import RunRow
from agentctl.store.totals import Totals, totals_of

__all__ = ["RunOperations", "read_run_documents"]

DISCONNECT_WAIT_SECONDS = 1.0
"""How long a caller that goes away is held for the end of the run that it stops."""


class RunOperations(Access):
    """Runs of every kind of component."""

    async def create_run(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> Document[RunRecord]:
        """Start a run and wait for its end; with `background` only for its row.

        A caller that goes away stops its run, unless it is a background run or
        `server.on_disconnect` is `detach`. A request that was made before is answered with its run.

        Raises:
            Conflict: that run was deleted.
        """
        run = await self._start(kind, component_id, request, stream=False)
        database = self._database_of(kind, component_id)
        if isinstance(run, EarlierRun):
            with _deleted_as_conflict():
                return await self._replay(database, run.run_id, request)
        if not request.background:
            try:
                await asyncio.shield(run.ended)
            finally:
                await self._leave(run, request)
        return Document(await database.read(self._document(run.run_id)))

    async def _replay(
        self, database: Database, run_id: str, request: RunRequest
    ) -> Document[RunRecord]:
        """The record of an earlier run: at its end, or with `background` now."""
        document = await database.read(self._document(run_id))
        if not request.background:
            await wait_until_final(self.hosting.engine, database, self.hosting.changes, run_id)
            document = await database.read(self._document(run_id))
        return Document(document)

    async def stream_run(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> AsyncIterator[StreamEvent]:
        """Start a run and follow it to its end. What is refused is raised before any event."""
        run = await self._start(kind, component_id, request, stream=True)
        database = self._database_of(kind, component_id)
        if isinstance(run, EarlierRun):
            with _deleted_as_conflict():
                await database.read(self._document(run.run_id))
        try:
            events = self._follow(database, run.run_id, BEFORE_FIRST_EVENT)
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event
        finally:
            if not isinstance(run, EarlierRun):
                await self._leave(run, request)

    async def resume_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        """Follow a run from some event on. See `resumed` for what is refused."""
        events = await self.open_resumed_stream(kind, component_id, run_id, request)
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def open_resumed_stream(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncGenerator[StreamEvent]:
        """The events of a run behind `request.after`, those to come included.

        What is refused is raised here, so that no event has to be awaited for that.

        Raises:
            BadRequest: no session is given by a caller who is no administrator.
            NotFound: not a run of this component and session, or not the caller's.
            ValidationFailed: no event has such a number.
        """
        path = {KINDS[kind].id_field: component_id, "run_id": run_id}
        async with self.audit(operation_ids(kind).resume_run, **path):
            session_id = request.session_id
            database = await self._require_named_run(
                kind, component_id, run_id, session_id, "resume"
            )
            if not BEFORE_FIRST_EVENT <= request.after <= MAXIMUM_EVENT_NUMBER:
                raise errors.ValidationFailed(
                    f"last_event_index must be a number from {BEFORE_FIRST_EVENT} "
                    f"to {MAXIMUM_EVENT_NUMBER}"
                )
            return self._follow(database, run_id, request.after)

    def _follow(self, database: Database, run_id: str, after: int) -> AsyncGenerator[StreamEvent]:
        return follow_run(self.hosting.engine, database, self.hosting.changes, run_id, after)

    async def _leave(self, run: LiveRun, request: RunRequest) -> None:
        """The caller of a run is going: stop it, unless it has ended or may go on."""
        if run.ended.done() or self._outlives_caller(request):
            return
        run.stop(cancelled(self.principal.actor, CLIENT_DISCONNECTED))
        await asyncio.wait([run.ended], timeout=DISCONNECT_WAIT_SECONDS)

    def _outlives_caller(self, request: RunRequest) -> bool:
        """Whether a run outlives the interest of its caller (contract.md 5)."""
        detaches = self.hosting.settings.server.on_disconnect == "detach"
        return request.background or (detaches and self.principal.via == "http")

    async def _start(
        self, kind: ComponentKind, component_id: str, request: RunRequest, *, stream: bool
    ) -> LiveRun | EarlierRun:
        """Start a run, which has its row in the audit in the transaction of its own row.

        A request that was made before starts none, and has none.
        """
        path = {KINDS[kind].id_field: component_id}
        async with self.audit(operation_ids(kind).create_run, **path) as record:
            submission = self._submission(kind, component_id, request, stream=stream)
            record.name("session", submission.session_id)
            record.add_created("run", submission.run_id)
            note = await self._note(record, submission)
            with record.kept():
                return await self.hosting.engine.submit(replace(submission, note=note))

    async def _note(self, record: AuditedCall, submission: Submission) -> AppendEntry | None:
        """What the transaction of a submission is to append.

        A row that has to stand before it is not written for a request that was made before.
        """
        database, request = self.database(submission.component.database), submission.idempotency
        if request is not None and database is not self.hosting.audit.database:
            claimed = idempotency.is_claimed(request.principal, request.key, now())
            if await database.read(claimed):
                return _refuse_new_run
        return await record.note(database)

    def _submission(
        self, kind: ComponentKind, component_id: str, request: RunRequest, *, stream: bool
    ) -> Submission:
        component = self.component(kind, component_id)
        self._check_message(request.message)
        session_id = request.session_id
        if session_id is None:
            session_id = self.principal.session_id or new_id()
        return Submission(
            component=component,
            session_id=check_session_id(session_id),
            user_id=self.owner(request.user_id),
            message=request.message,
            background=request.background,
            recorded=stream or request.background,
            goes_on=self._outlives_caller(request),
            actor=self.principal.actor,
            visibility=self.run_visibility(request.user_id),
            idempotency=self._idempotency(kind, component_id, request, stream=stream),
        )

    def _idempotency(
        self, kind: ComponentKind, component_id: str, request: RunRequest, *, stream: bool
    ) -> Idempotency | None:
        """What makes the request the same as another one: the caller, the key, and all it asks for.

        Raises:
            ValidationFailed: the key is none.
        """
        key = request.idempotency_key
        if key is None:
            return None
        if not is_idempotency_key(key):
            raise errors.ValidationFailed(
                "Idempotency-Key must be 1 to 255 visible ASCII characters"
            )
        asked = [kind, component_id, request.message, request.session_id, request.user_id]
        body = orjson.dumps([*asked, request.background, stream])
        # No subject is empty (contract.md 6), so nobody's keys are those of callers without one.
        owner = self.principal.subject or ""
        return Idempotency(owner, key, hashlib.sha256(body).hexdigest())

    def _check_message(self, message: str) -> None:
        if not message:
            raise errors.ValidationFailed("message must not be empty")
        check_text("message", message)
        limit = self.hosting.settings.limits.message_bytes
        if len(message.encode()) > limit:
            raise errors.TooLarge(f"message must be at most {limit} bytes")

    async def get_runs(self, filter: RunFilter) -> Document[RunPage]:
        """A page of the runs that the caller sees, across sessions, newest first."""
        async with self.audit("get_runs"):
            return await self._page(self.database(filter.db_id), filter)

    async def list_component_runs(
        self, kind: ComponentKind, component_id: str, filter: RunFilter
    ) -> Document[RunPage]:
        """A page of the runs of one component that the caller sees."""
        path = {KINDS[kind].id_field: component_id}
        async with self.audit(operation_ids(kind).list_runs, **path):
            component = self.component(kind, component_id)
            narrowed = replace(filter, component_type=kind, component_id=component_id)
            return await self._page(self.database(filter.db_id or component.database), narrowed)

    async def _page(self, database: Database, filter: RunFilter) -> Document[RunPage]:
        if filter.page.sort_by != "created_at":
            raise errors.ValidationFailed("sort_by must be created_at: runs have no other order")
        if filter.live and filter.status is not None:
            raise errors.ValidationFailed("live and status exclude each other: give one of them")
        check_texts(
            component_id=filter.component_id,
            session_id=filter.session_id,
            user_id=filter.user_id,
        )
        query = runs.RunQuery(
            visibility=self.visibility,
            status=filter.status,
            component_type=filter.component_type,
            component_id=filter.component_id,
            session_id=filter.session_id,
            user_id=filter.user_id,
            sort_order=filter.page.sort_order,
            limit=filter.page.limit,
            offset=paging.page_offset(filter.page),
            after=paging.decode_cursor("runs", filter.page),
            live=filter.live,
            created_after=filter.created_after,
            created_before=filter.created_before,
        )
        work = _read_page(query, filter.page, totals_of(database))
        return Document(await database.read(work, large=True))

    async def get_run(self, run_id: str, *, db_id: str | None = None) -> Document[RunRecord]:
        """One run, wherever it is."""
        async with self.audit("get_run", run_id=run_id):
            return Document(await self.database(db_id).read(self._document(run_id)))

    async def get_component_run(
        self, kind: ComponentKind, component_id: str, run_id: str, *, session_id: str | None = None
    ) -> Document[RunRecord]:
        """One run of a component."""
        path = {KINDS[kind].id_field: component_id, "run_id": run_id}
        async with self.audit(operation_ids(kind).get_run, **path):
            database = await self.require_run(kind, component_id, run_id, session_id)
            return Document(await database.read(self._document(run_id)))

    async def require_run(
        self, kind: ComponentKind, component_id: str, run_id: str, session_id: str | None
    ) -> Database:
        """The database of a run of this component, and of this session when one is given.

        Raises:
            NotFound: it is none of theirs, or not the caller's.
        """
        database = self._database_of(kind, component_id)
        found = await database.read(runs.get_state(run_id, self.visibility))
        if (
            found is None
            or (found.component_type, found.component_id) != (kind, component_id)
            or (session_id is not None and found.session_id != session_id)
        ):
            raise errors.NotFound("Run not found")
        return database

    def _database_of(self, kind: ComponentKind, component_id: str) -> Database:
        return self.database(self.component(kind, component_id).database)

    @unit
    def _document(self, run_id: str) -> Steps[bytes]:
        """The run as the caller may see it.

        Raises:
            NotFound: it is not there, or not the caller's.
        """
        row = yield from runs.get(run_id, self.visibility)
        if row is None:
            raise errors.NotFound("Run not found")
        (document,) = yield from read_run_documents([row])
        return document

    async def cancel_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: CancelRequest
    ) -> Document[CancelRecord]:
        """Ask a run to stop, wait for its end, and say which of the two happened.

        Raises:
            BadRequest: no session is given by a caller who is no administrator (spec.md
                "Authentication" 8).
            NotFound: not a run of this component and session, or not the caller's.
        """
        path = {KINDS[kind].id_field: component_id, "run_id": run_id}
        async with self.audit(operation_ids(kind).cancel_run, **path) as record:
            session_id = request.session_id or self.principal.session_id
            if session_id is not None:
                record.name("session", session_id)
            database = await self._require_named_run(
                kind, component_id, run_id, session_id, "cancel"
            )
            _check_cancel_request(request)
            note = await record.note(database)
            with record.kept():
                done = await self.hosting.canceller.cancel(
                    database,
                    run_id,
                    actor=self.principal.actor,
                    reason=request.reason,
                    wait=request.wait,
                    note=note,
                )
            return Document(documents.build_cancel_document(done))

    async def _require_named_run(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        session_id: str | None,
        action: str,
    ) -> Database:
        """The database of a run that is named with its session, as everyone but administrators
        must name it (spec.md "Authentication" 8).

        Raises:
            BadRequest: it is not.
            NotFound: not a run of this component and session, or not the caller's.
        """
        named = session_id or self.principal.session_id
        if named is None and not self.principal.admin:
            raise errors.BadRequest(f"session_id is required to {action} a run")
        return await self.require_run(kind, component_id, run_id, named)


@unit
def _refuse_new_run() -> Steps[None]:
    """For a request that was made before, as long as its key is remembered: with the last moment
    of that it would start a run without a row in the audit.
    """
    yield from ()
    raise errors.Unavailable("The Idempotency-Key has just been forgotten")


@contextlib.contextmanager
def _deleted_as_conflict() -> Iterator[None]:
    """For what is asked of the run of an earlier request."""
    try:
        yield
    except errors.NotFound:
        raise errors.Conflict("The run of this Idempotency-Key was deleted") from None


@unit
def read_run_documents(rows: Sequence[RunRow]) -> Steps[list[bytes]]:
    """The documents of some runs, each with the ids of the runs that it asked for."""
    members = yield from runs.list_children([row.run_id for row in rows])
    return [documents.build_run_document(row, members[row.run_id]) for row in rows]


@unit
def _read_page(query: runs.RunQuery, page: Page, known: Totals) -> Steps[bytes]:
    found = yield from runs.list_page(query, known)
    items = yield from read_run_documents(found.rows)
    return documents.build_page_document("runs", items, page, found)


def _check_cancel_request(request: CancelRequest) -> None:
    if not 0 <= request.wait <= MAXIMUM_CANCEL_WAIT:
        raise errors.ValidationFailed(
            f"wait must be a number of seconds from 0 to {MAXIMUM_CANCEL_WAIT:g}"
        )
    if request.reason is not None:
        check_text("reason", request.reason)
        if len(request.reason) > MAXIMUM_REASON_LENGTH:
            raise errors.ValidationFailed(
                f"reason must be at most {MAXIMUM_REASON_LENGTH} characters"
            )
