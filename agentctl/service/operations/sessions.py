"""The session operations (docs/contract.md "Sessions")."""

from __future__ import annotations

import asyncio

from agentctl import errors
from agentctl.config.quotas import Quotas
from agentctl.config.settings import Agent, Team
from agentctl.interface.requests import (
    DEFAULT_LOCATOR,
    DELETION_WAIT,
    MAXIMUM_DELETED_SESSIONS,
    MAXIMUM_SESSION_NAME_LENGTH,
    BulkDeletion,
    NewSession,
    SessionLocator,
    SessionPatch,
)
from agentctl.records.document import Document
from agentctl.records.sessions import SESSION_NOT_FOUND, SessionDetail, SessionRow, SessionView
from agentctl.records.text import check_session_id, check_text, dump_checked_json, new_id
from agentctl.records.times import now
from agentctl.runtime.components.records import dump_session_data
from agentctl.service.documents import session_documents
from agentctl.service.family import OperationFamily
from agentctl.service.reads.sessions import SessionReads
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import run_reads, sessions
from agentctl.store.repositories import search as search_texts
from agentctl.store.repositories.quotas import check_added


class SessionOperations(SessionReads, OperationFamily):
    """Operations on sessions; the reads are in `reads.sessions`."""

    async def create(self, session: NewSession) -> Document[SessionDetail]:
        async with self.audit("create_session") as call:
            database = self.lookups.database(session.db_id)

            session_id = session.session_id
            if session_id is not None:
                check_session_id(session_id)

            component_name = None
            component_data = None
            if session.component_id is not None:
                component = self.lookups.component(session.type, session.component_id)
                component_name = component.name
                component_data = dump_session_data(self.hosting.catalog, component)

            row = sessions.build_session(
                session_id or new_id(),
                session.type,
                user_id=self.lookups.require_owner(session.user_id),
                now=now(),
                component_id=session.component_id,
                component_name=component_name,
                component_data=component_data,
                session_name=_check_name(session.session_name),
                session_state=dump_checked_json("session_state", session.session_state),
                metadata=dump_checked_json("metadata", session.metadata),
            )

            call.add_resource("session", row.session_id)
            await call.write(database, _insert(database, row, self.hosting.settings.quotas))
            return Document(session_documents.build_session_document(row, []))

    async def update(
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

    async def rename(
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
            raise errors.NotFound(SESSION_NOT_FOUND)

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

    async def summarize(
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

    async def delete(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR, *, cancel: bool = False
    ) -> None:
        async with self.audit("delete_session", session_id=session_id) as call:
            database = self.lookups.session_database(where)
            if cancel:
                row = await database.read(self.lookups.session(session_id, where))
                _check_not_held(row)
                open_runs = await database.read(run_reads.list_open_in_session(session_id))
                if open_runs:
                    # The cancels are part of the deletion, whose entry is committed before them.
                    await call.commit_first(database)
                # The deletion itself checks which runs have ended.
                await self.hosting.canceller.cancel_several(
                    database,
                    open_runs,
                    actor=self.principal.actor,
                    reason="The session is deleted",
                    wait=DELETION_WAIT,
                )

            await call.write(database, self._delete([session_id], where))

    async def delete_several(self, deletion: BulkDeletion) -> None:
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
        if len(session_ids) > 1:
            # Lock all rows in one order before the first deletion: two callers cannot deadlock.
            for session_id in sorted(session_ids):
                yield from sessions.get_for_update(session_id, self.lookups.visibility)

        for session_id in session_ids:
            row = yield from self.lookups.session(session_id, where, lock=True)
            _check_not_held(row)
            open_runs = yield from run_reads.list_open_in_session(session_id)
            if open_runs:
                raise errors.Conflict(
                    f"The session has runs that are not final: {', '.join(open_runs)}"
                )
            yield from sessions.delete(session_id)


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


def _check_name(session_name: str) -> str:
    if len(session_name) > MAXIMUM_SESSION_NAME_LENGTH:
        raise errors.ValidationFailed(
            f"session_name must be at most {MAXIMUM_SESSION_NAME_LENGTH} characters"
        )
    return check_text("session_name", session_name)
