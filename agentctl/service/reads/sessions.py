"""The reads of sessions and of their runs (docs/contract.md "Sessions")."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from functools import partial
from typing import TypeVar

from agentctl import errors
from agentctl.interface.requests import (
    DEFAULT_LOCATOR,
    FIRST_RUNS,
    FULL_VIEW,
    RunView,
    SessionFilter,
    SessionLocator,
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
from agentctl.service.documents import documents, paging, run_documents, session_documents
from agentctl.service.documents.session_documents import JOIN_BYTES
from agentctl.service.reads.family import ReadFamily
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import lists, run_reads
from agentctl.store.visibility import EVERYONE
from agentctl.work.event_loop import convert

Row = TypeVar("Row", bound=SummaryRow)

SMALL_HISTORY_BYTES = 65_536
"""Bytes of a history up to which it is read with its session."""


class SessionReads(ReadFamily):
    """Reads of sessions and of their runs."""

    async def get(
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

    async def get_changed(
        self, session_id: str, where: SessionLocator, known: Container[str]
    ) -> tuple[str, Document[SessionDetail] | None]:
        async with self.audit("get_session_by_id", session_id=session_id):
            database = self.lookups.session_database(where)

            if not known:
                row, history, identity = await self._read_with_history(database, session_id, where)
                row = self._hide_hold(row)
                version = session_documents.build_session_version(row)
                return version, await self._detail(
                    database, row, history=history, identity=identity
                )

            row = await database.read(self.lookups.session(session_id, where))
            row = self._hide_hold(row)
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
        """Build the document of a session.

        Args:
            history: its history, if it was read with the session.
            identity: the identity of the session, if it was read.
        """
        row = self._hide_hold(row)
        if view == "summary":
            return Document(await database.read(session_documents.read_session_head(row)))

        histories = list[bytes]()
        if history is not None:
            histories = [history]
            documents.check_array(histories)
        elif row.session_type != "workflow" and row.history_bytes:
            histories = await self.hosting.histories.read(database, row, identity)

        build = partial(session_documents.build_session_document, row, histories)
        return Document(await convert(build, row.history_bytes, JOIN_BYTES))

    def _hide_hold(self, row: Row) -> Row:
        """Return a session without its hold unless the caller is an administrator."""
        if row.hold is None or self.principal.admin:
            return row
        return replace(row, hold=None)

    def require_database(self, where: SessionLocator) -> None:
        """Raise NotFound unless the database and table exist."""
        self.lookups.session_database(where)

    async def require(self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR) -> None:
        await self.lookups.session_database(where).read(self.lookups.session(session_id, where))

    async def list_runs(
        self, session_id: str, query: SessionRunsQuery = FIRST_RUNS
    ) -> Document[list[RunRecord]]:
        async with self.audit("get_session_runs", session_id=session_id):
            database = self.lookups.session_database(query.where)
            work = self._read_runs(session_id, query)
            runs = await database.read(work, size="large")
            build = partial(documents.join_array, runs)
            return Document(await convert(build, sum(map(len, runs))))

    @unit
    def _read_runs(self, session_id: str, query: SessionRunsQuery) -> Steps[list[bytes]]:
        yield from self.lookups.session(session_id, query.where)
        paging.check_limit(query.limit)
        paging.check_run_view(query.form)

        after_seq = yield from _find_seq(session_id, "after", query.after)
        before_seq = yield from _find_seq(session_id, "before", query.before)
        rows = yield from run_reads.list_in_session(
            session_id,
            limit=query.limit,
            after_seq=after_seq,
            before_seq=before_seq,
            top_level=query.parent == "none",
            order=query.order,
            summary=query.form.view in SUMMARY_VIEWS,
        )

        hosting = self.hosting
        return (
            yield from run_documents.read_run_documents(
                rows, query.form, hosting.find_spans, hosting.find_metrics
            )
        )

    async def get_run(
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
                state, newest_ids = turn
                return FoundTurn(
                    kind=state.component_type,
                    component_id=state.component_id,
                    session_id=state.session_id,
                    db_id=db_id,
                    is_newest=newest_ids[:1] == [run_id],
                    is_only=newest_ids == [run_id],
                )
        raise errors.NotFound("Run not found")

    async def read_turn(self, run_id: str, turn: FoundTurn) -> Document[RunRecord]:
        database = self.hosting.databases[turn.db_id]
        return await self.lookups.read_run(database, run_id)

    @unit
    def _find_turn(self, run_id: str) -> Steps[tuple[RunState, list[str]] | None]:
        """Return the state of a turn, and the ids of the newest two turns of its session."""
        state = yield from run_reads.get_state(run_id, self.lookups.visibility)
        if state is None or state.parent_run_id is not None:
            return None

        newest_turns = yield from run_reads.list_in_session(
            state.session_id, limit=2, top_level=True, order="desc", summary=True
        )
        return state, [row.run_id for row in newest_turns]

    async def list(self, filter: SessionFilter) -> Document[SessionPage]:
        async with self.audit("get_sessions"):
            database = self.lookups.session_database(filter.where)
            paging.check_session_filter(filter)

            search = paging.build_search(database, filter.search)
            part = paging.build_slice("sessions", filter.page)
            visibility = self.lookups.visibility
            work = lists.list_sessions(filter, visibility, part, database.totals, search)
            page = await database.read(work, size="unknown" if search is None else "large")

            visible_rows = page.rows
            if not self.principal.admin:
                visible_rows = [row.without_hold() for row in page.rows]
            items = self.hosting.session_texts.build(visible_rows)
            items = await run_documents.add_matches(items, page, search)
            return Document(documents.build_page_document("sessions", items, filter.page, page))


@unit
def _find_seq(session_id: str, name: str, run_id: str | None) -> Steps[int | None]:
    """Return the number of the run that a parameter names; None without the parameter."""
    if run_id is None:
        return None
    run = yield from run_reads.get(run_id, EVERYONE, summary=True)
    if run is None or run.session_id != session_id:
        raise errors.ValidationFailed(f"{name} must be the id of a run of the session")
    return run.seq
