"""The session operations (docs/contract.md "Sessions")."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import replace
from functools import partial
from typing import TypeVar

from agentctl import errors
from agentctl.config.settings import Agent, Team
from agentctl.config.upkeep import Quotas
from agentctl.interface.requests import (
    DEFAULT_LOCATOR,
    DELETION_WAIT,
    FIRST_RUNS,
    FULL_VIEW,
    MAXIMUM_DELETED_SESSIONS,
    MAXIMUM_LIMIT,
    MAXIMUM_SESSION_NAME_LENGTH,
    BulkDeletion,
    NewSession,
    RunView,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    SessionRunsQuery,
)
from agentctl.records.document import Document
from agentctl.records.items import SUMMARY_VIEWS
from agentctl.records.runs import FoundTurn, RunRecord, RunState
from agentctl.records.sessions import (
    SessionDetail,
    SessionPage,
    SessionRow,
    SessionView,
    SummaryRow,
)
from agentctl.records.text import check_session_id, check_text, dump_checked_json, new_id
from agentctl.records.times import now
from agentctl.runtime.components.records import dump_session_data
from agentctl.service import documents, paging, run_documents, session_documents
from agentctl.service.family import OperationFamily
from agentctl.service.session_documents import JOIN_BYTES
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import lists, run_reads, sessions
from agentctl.store.repositories import search as search_texts
from agentctl.store.repositories.quotas import check_added
from agentctl.store.visibility import EVERYONE
from agentctl.work.event_loop import convert

Row = TypeVar("Row", bound=SummaryRow)

SMALL_HISTORY_BYTES = 65_536
"""Bytes of a history up to which it is read with its session."""


class SessionOperations(OperationFamily):
    """Operations on sessions."""

    async def get_sessions(self, filter: SessionFilter) -> Document[SessionPage]:
        async with self.audit("get_sessions"):
            database = self.lookups.session_database(filter.where)
            paging.check_session_filter(filter)

            search = paging.build_search(database, filter.search)
            part = paging.build_slice("sessions", filter.page)
            visibility = self.lookups.visibility
            work = lists.list_sessions(filter, visibility, part, database.totals, search)
            page = await database.read(work, size="unknown" if search is None else "large")

            items = session_documents.build_session_summaries(map(self._show_hold, page.rows))
            items = await run_documents.add_matches(items, page, search)
            return Document(documents.build_page_document("sessions", items, filter.page, page))

    async def create_session(self, session: NewSession) -> Document[SessionDetail]:
        async with self.audit("create_session") as call:
            database = self.lookups.database(session.db_id)

            session_id = session.session_id
            if session_id is not None:
                check_session_id(session_id)

            name = None
            data = None
            if session.component_id is not None:
                component = self.lookups.component(session.type, session.component_id)
                name = component.name
                data = dump_session_data(self.hosting.catalog, component)

            row = sessions.build_session(
                session_id or new_id(),
                session.type,
                user_id=self.lookups.require_owner(session.user_id),
                now=now(),
                component_id=session.component_id,
                component_name=name,
                component_data=data,
                session_name=_check_name(session.session_name),
                session_state=dump_checked_json("session_state", session.session_state),
                metadata=dump_checked_json("metadata", session.metadata),
            )

            call.add_resource("session", row.session_id)
            await call.write(database, _insert(database, row, self.hosting.settings.quotas))
            return Document(session_documents.build_session_document(row, []))

    async def get_session_by_id(
        self,
        session_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        view: SessionView = "full",
    ) -> Document[SessionDetail]:
        async with self.audit("get_session_by_id", session_id=session_id):
            database = self.lookups.session_database(where)
            if view == "summary":
                row = await database.read(self.lookups.session(session_id, where))
                return await self._detail(database, row, view)
            row, history, identity = await self._read_with_history(database, session_id, where)
            return await self._detail(database, row, history=history, identity=identity)

    async def get_changed_session(
        self, session_id: str, where: SessionLocator, known: Container[str]
    ) -> tuple[str, Document[SessionDetail] | None]:
        async with self.audit("get_session_by_id", session_id=session_id):
            database = self.lookups.session_database(where)

            if not known:
                row, history, identity = await self._read_with_history(database, session_id, where)
                row = self._show_hold(row)
                version = session_documents.build_session_version(row)
                return version, await self._detail(
                    database, row, history=history, identity=identity
                )

            row = await database.read(self.lookups.session(session_id, where))
            row = self._show_hold(row)
            version = session_documents.build_session_version(row)
            if version in known:
                return version, None
            return version, await self._detail(database, row)

    async def _read_with_history(
        self, database: Database, session_id: str, where: SessionLocator
    ) -> tuple[SessionRow, bytes | None, str | None]:
        work = self.lookups.session_with_history(session_id, where, SMALL_HISTORY_BYTES)
        return await database.read(work)

    async def _detail(
        self,
        database: Database,
        row: SessionRow,
        view: SessionView = "full",
        history: bytes | None = None,
        identity: str | None = None,
    ) -> Document[SessionDetail]:
        row = self._show_hold(row)
        if view == "summary":
            return Document(await database.read(session_documents.read_session_head(row)))
        histories = [] if history is None else [history]
        documents.check_array(histories)
        if not histories and row.session_type != "workflow" and row.history_bytes:
            histories = await self.hosting.histories.read(database, row, identity)
        build = partial(session_documents.build_session_document, row, histories)
        return Document(await convert(build, row.history_bytes, JOIN_BYTES))

    def _show_hold(self, row: Row) -> Row:
        """Return a session without its hold unless the caller is an administrator."""
        return row if row.hold is None or self.principal.admin else replace(row, hold=None)

    async def require_session(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> None:
        await self.lookups.session_database(where).read(self.lookups.session(session_id, where))

    async def update_session(
        self,
        session_id: str,
        patch: SessionPatch,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        view: SessionView = "full",
    ) -> Document[SessionDetail]:
        async with self.audit("update_session", session_id=session_id) as call:
            database = self.lookups.session_database(where)
            row = await call.write(database, self._update(database, session_id, patch, where))
            return await self._detail(database, row, view)

    async def rename_session(
        self,
        session_id: str,
        session_name: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        view: SessionView = "full",
    ) -> Document[SessionDetail]:
        patch = SessionPatch({"session_name": session_name})
        async with self.audit("rename_session", session_id=session_id) as call:
            database = self.lookups.session_database(where)
            row = await call.write(database, self._update(database, session_id, patch, where))
            return await self._detail(database, row, view)

    @unit
    def _update(
        self, database: Database, session_id: str, patch: SessionPatch, where: SessionLocator
    ) -> Steps[SessionRow]:
        stored_session = yield from self.lookups.session(session_id, where, lock=True)

        changes: dict[str, str | None] = {}
        for name, value in patch.changes.items():
            if name == "session_name":
                changes[name] = _check_name(value)
            else:
                changes[name] = dump_checked_json(name, value)

        row = yield from sessions.update(session_id, self.lookups.visibility, changes, now())
        if row is None:
            raise errors.NotFound("Session not found")

        if "session_name" in changes and database.outbox.tokenizer is not None:
            # A trigger changes the text of a name. The first name has none yet.
            yield from search_texts.add_session(session_id, database.outbox.tokenizer)

        # A user at the quota can make data smaller.
        grows = any(
            len(text or "") > len(getattr(stored_session, name) or "")
            for name, text in changes.items()
            if name != "session_name"
        )
        if grows:
            yield from check_added(self.hosting.settings.quotas, row.user_id)

        return row

    async def summarize_session(
        self,
        session_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        view: SessionView = "full",
    ) -> Document[SessionDetail]:
        async with self.audit("summarize_session", session_id=session_id) as call:
            database = self.lookups.session_database(where)
            row = await database.read(self.lookups.session(session_id, where))

            kind = row.session_type
            component = self.hosting.catalog.get(kind, row.component_id or "")
            if component is not None:
                component = self.hosting.catalog.choose_side(component, session_id)
            spec = None if component is None else component.spec
            makes_summaries = isinstance(spec, Agent | Team) and spec.summary.every_runs

            if component is None or not makes_summaries:
                raise errors.BadRequest(
                    "The session has no agent or team that makes summaries",
                    hint="set summary = { every_runs = 1 } on its agent or team",
                )

            await call.commit_first(database)
            run = await self.hosting.engine.summarize(
                component, session_id, row.user_id, self._request_id
            )
            if run is not None:
                ending = await asyncio.shield(run.ended)
                if ending.status != "COMPLETED":
                    raise errors.Unavailable(
                        "The session was not summarized", cause=ending.error_detail
                    )

            row = await database.read(self.lookups.session(session_id, where))
            return await self._detail(database, row, view)

    async def delete_session(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR, *, cancel: bool = False
    ) -> None:
        async with self.audit("delete_session", session_id=session_id) as call:
            database = self.lookups.session_database(where)
            if cancel:
                # The deletion itself checks the result. Its audit entry is committed before the
                # cancels, which are part of it.
                row = await database.read(self.lookups.session(session_id, where))
                _check_not_held(row)
                live = await database.read(run_reads.list_open_in_session(session_id))
                if live:
                    await call.commit_first(database)

                actor = self.principal.actor
                reason = "The session is deleted"
                canceller = self.hosting.canceller
                cancels = [
                    canceller.cancel(
                        database, run_id, actor=actor, reason=reason, wait=DELETION_WAIT
                    )
                    for run_id in live
                ]
                await asyncio.gather(*cancels, return_exceptions=True)
            await call.write(database, self._delete([session_id], where))

    async def delete_sessions(self, deletion: BulkDeletion) -> None:
        async with self.audit("delete_sessions") as call:
            database = self.lookups.database(deletion.db_id)
            if not 1 <= len(deletion.session_ids) <= MAXIMUM_DELETED_SESSIONS:
                raise errors.ValidationFailed(
                    f"session_ids must hold 1 to {MAXIMUM_DELETED_SESSIONS} ids"
                )
            session_ids = list(dict.fromkeys(deletion.session_ids))
            for index, session_id in enumerate(deletion.session_ids):
                check_text(f"session_ids[{index}]", session_id)
            call.add_resource("session", *session_ids)
            await call.write(database, self._delete(session_ids, DEFAULT_LOCATOR))

    @unit
    def _delete(self, session_ids: list[str], where: SessionLocator) -> Steps[None]:
        # Lock all rows in one order before the first deletion: two callers cannot deadlock.
        for session_id in sorted(session_ids) if len(session_ids) > 1 else ():
            yield from sessions.get_for_update(session_id, self.lookups.visibility)
        for session_id in session_ids:
            row = yield from self.lookups.session(session_id, where, lock=True)
            _check_not_held(row)
            live = yield from run_reads.list_open_in_session(session_id)
            if live:
                raise errors.Conflict(f"The session has runs that are not final: {', '.join(live)}")
            yield from sessions.delete(session_id)

    async def get_session_runs(
        self, session_id: str, query: SessionRunsQuery = FIRST_RUNS
    ) -> Document[list[RunRecord]]:
        async with self.audit("get_session_runs", session_id=session_id):
            database = self.lookups.session_database(query.where)
            work = self._runs(session_id, query)
            runs = await database.read(work, size="large")
            build = partial(documents.join_array, runs)
            return Document(await convert(build, sum(map(len, runs))))

    @unit
    def _runs(self, session_id: str, query: SessionRunsQuery) -> Steps[list[bytes]]:
        yield from self.lookups.session(session_id, query.where)
        if not 1 <= query.limit <= MAXIMUM_LIMIT:
            raise errors.ValidationFailed(f"limit must be a number from 1 to {MAXIMUM_LIMIT}")
        paging.check_run_view(query.form)

        rows = yield from run_reads.list_in_session(
            session_id,
            limit=query.limit,
            after_seq=(yield from _find_seq(session_id, "after", query.after)),
            before_seq=(yield from _find_seq(session_id, "before", query.before)),
            top_level=query.parent == "none",
            order=query.order,
            summary=query.form.view in SUMMARY_VIEWS,
        )

        engine = self.hosting.engine
        return (
            yield from run_documents.read_run_documents(
                rows, query.form, engine.find_spans, engine.find_metrics
            )
        )

    async def get_session_run(
        self,
        session_id: str,
        run_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        form: RunView = FULL_VIEW,
    ) -> Document[RunRecord]:
        async with self.audit("get_session_run", session_id=session_id, run_id=run_id):
            database = self.lookups.session_database(where)
            paging.check_run_view(form)
            return await self.lookups.read_run(database, run_id, form, (session_id, where))

    async def find_turn(self, run_id: str) -> FoundTurn:
        for db_id in self.hosting.databases:
            turn = await self.hosting.databases[db_id].read(self._find_turn(run_id))
            if turn is not None:
                state, newest = turn
                return FoundTurn(
                    kind=state.component_type,
                    component_id=state.component_id,
                    session_id=state.session_id,
                    db_id=db_id,
                    is_newest=newest[:1] == [run_id],
                    is_only=newest == [run_id],
                )
        raise errors.NotFound("Run not found")

    async def read_turn(self, run_id: str, found: FoundTurn) -> Document[RunRecord]:
        database = self.hosting.databases[found.db_id]
        return await self.lookups.read_run(database, run_id)

    @unit
    def _find_turn(self, run_id: str) -> Steps[tuple[RunState, list[str]] | None]:
        state = yield from run_reads.get_state(run_id, self.lookups.visibility)
        if state is None or state.parent_run_id is not None:
            return None
        newest = yield from run_reads.list_in_session(
            state.session_id, limit=2, top_level=True, order="desc", summary=True
        )
        return state, [row.run_id for row in newest]


@unit
def _insert(database: Database, row: SessionRow, quotas: Quotas) -> Steps[None]:
    if not (yield from sessions.create(row)):
        raise errors.Conflict("The session id is taken")
    if database.outbox.tokenizer is not None:
        yield from search_texts.add_session(row.session_id, database.outbox.tokenizer)
    yield from check_added(quotas, row.user_id, "sessions")


def _check_not_held(row: SessionRow) -> None:
    if row.hold is not None:
        raise errors.Held(
            f"Session {row.session_id} is held and is not deleted", session_ids=[row.session_id]
        )


@unit
def _find_seq(session_id: str, name: str, run_id: str | None) -> Steps[int | None]:
    if run_id is None:
        return None
    run = yield from run_reads.get(run_id, EVERYONE, summary=True)
    if run is None or run.session_id != session_id:
        raise errors.ValidationFailed(f"{name} must be the id of a run of the session")
    return run.seq


def _check_name(session_name: str) -> str:
    if len(session_name) > MAXIMUM_SESSION_NAME_LENGTH:
        raise errors.ValidationFailed(
            f"session_name must be at most {MAXIMUM_SESSION_NAME_LENGTH} characters"
        )
    return check_text("session_name", session_name)
