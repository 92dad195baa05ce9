"""The base of the operations that read, with find-or-404 lookups for one principal.

Every lookup of a resource raises NotFound if it does not exist. A resource that the principal may
not see raises the same error (docs/contract.md "Errors").
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentctl import errors
from agentctl.auth.principal import Principal
from agentctl.interface.requests import FULL_VIEW, MAXIMUM_USER_ID_LENGTH, RunView, SessionLocator
from agentctl.records.document import Document
from agentctl.records.items import SUMMARY_VIEWS
from agentctl.records.kinds import ComponentKind
from agentctl.records.runs import RunRecord
from agentctl.records.sessions import SESSION_NOT_FOUND, SESSION_TABLE, SessionRow
from agentctl.records.text import check_text
from agentctl.runs.states import is_settled
from agentctl.runtime.component import Component
from agentctl.service.documents.documents import build_document_alone
from agentctl.service.documents.run_documents import FindMetrics, FindSpans, read_run_documents
from agentctl.service.documents.session_documents import SessionHistories, SessionTexts
from agentctl.service.reads.configured import (
    Access,
    ConfiguredFamily,
    ConfiguredHosting,
    find_component,
)
from agentctl.store.database import Database, Steps, single_unit, unit
from agentctl.store.repositories import run_reads, sessions
from agentctl.store.visibility import EVERYONE, Visibility


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadHosting(ConfiguredHosting):
    """The objects that the reads of every principal share, also those of sessions and runs."""

    find_spans: FindSpans
    """Finds the spans of the runs that this process executes."""

    find_metrics: FindMetrics
    """Finds the tokens of the runs that this process executes."""

    histories: SessionHistories = field(default_factory=SessionHistories)
    """The histories of sessions that were read last."""

    session_texts: SessionTexts = field(default_factory=SessionTexts)
    """The texts of the sessions that were listed last."""


LARGE_RUN_BYTES = 262_144
"""Size of the texts of a run from which its document is read and built on a reader thread."""


class Lookups:
    """Databases, components, sessions and runs as one principal finds them."""

    def __init__(self, hosting: ReadHosting, principal: Principal) -> None:
        self._hosting = hosting
        self._principal = principal

    @property
    def visibility(self) -> Visibility:
        """The data that the principal sees (docs/contract.md "Data scoping")."""
        return Visibility(everyone=self._principal.sees_all_users, user_id=self._principal.subject)

    @property
    def _may_set_owner(self) -> bool:
        """True for administrators that do not act for a user.

        A principal that sees all data only because `user_isolation` is off may not set owners.
        """
        return self._principal.admin and self._principal.sees_all_users

    def resolve_owner(self, user_id: str | None) -> str | None:
        """Return the owner of a new session: the subject, or `user_id` if the caller may set it.

        Raises:
            ValidationFailed: `user_id` is not a valid user id.
        """
        if self._may_set_owner and user_id is not None:
            if not 1 <= len(user_id) <= MAXIMUM_USER_ID_LENGTH:
                raise errors.ValidationFailed(
                    f"user_id must be 1 to {MAXIMUM_USER_ID_LENGTH} characters"
                )
            return check_text("user_id", user_id)
        return self._principal.subject

    def require_owner(self, user_id: str | None) -> str | None:
        """Return the owner of new data (`resolve_owner`); an administrator may name another user.

        Raises:
            Forbidden: `user_id` is another user, whose data the caller may not create or delete.
            ValidationFailed: `user_id` is not a valid user id.
        """
        if user_id not in (None, self._principal.subject) and not self._may_set_owner:
            scopes = (self._hosting.settings.authorization.admin_scope,)
            raise errors.Forbidden(
                "user_id is another user, and only administrators can name another one",
                required_scopes=() if self._principal.admin else scopes,
            )
        return self.resolve_owner(user_id)

    def run_visibility(self, user_id: str | None) -> Visibility:
        """Return the visibility of the sessions in which a new run may start."""
        if self._may_set_owner and user_id is not None:
            return Visibility(everyone=False, user_id=user_id)
        return self.visibility

    def require_account_management(self) -> None:
        """Require that the caller may manage service accounts.

        While authorization is off, every HTTP caller is an anonymous administrator. A token that
        such a caller creates would stay valid after authorization is on again.

        Raises:
            Forbidden: the call is over HTTP and authorization is off.
        """
        if self._principal.via == "http" and not self._hosting.settings.authorization.enabled:
            raise errors.Forbidden(
                "Service accounts are managed locally while authorization is off"
            )

    def database(self, db_id: str | None) -> Database:
        """Return the database with this id; None: the default database."""
        databases = self._hosting.databases
        database = databases.system if db_id is None else databases.get(db_id)
        if database is None:
            raise errors.NotFound("Database not found")
        return database

    def session_database(self, where: SessionLocator) -> Database:
        """Return the database that `where` names, after a check of its table."""
        if where.table is not None and where.table != SESSION_TABLE:
            raise errors.NotFound("Table not found")
        return self.database(where.db_id)

    def component(self, kind: ComponentKind, component_id: str) -> Component:
        """Return a configured component."""
        return find_component(self._hosting.catalog, kind, component_id)

    def component_database(self, kind: ComponentKind, component_id: str) -> Database:
        """Return the database of a configured component."""
        return self.database(self.component(kind, component_id).database)

    @single_unit
    def session(
        self, session_id: str, where: SessionLocator, *, lock: bool = False
    ) -> Steps[SessionRow]:
        """Read a session; with `lock` its row cannot change until the transaction ends."""
        if lock:
            row = yield from sessions.get_for_update(session_id, self.visibility)
        else:
            row = yield from sessions.get(session_id, self.visibility)
        return _require_match(row, where)

    @single_unit
    def session_with_history(
        self, session_id: str, where: SessionLocator, maximum: int
    ) -> Steps[tuple[SessionRow, bytes | None, str | None]]:
        """Read a session, its history and its identity (`sessions.get_with_history`)."""
        stored = yield from sessions.get_with_history(session_id, self.visibility, maximum)
        if stored is None:
            raise errors.NotFound(SESSION_NOT_FOUND)
        row, history, identity = stored
        return _require_match(row, where), history, identity

    async def read_run(
        self,
        database: Database,
        run_id: str,
        view: RunView = FULL_VIEW,
        session: tuple[str, SessionLocator] | None = None,
    ) -> Document[RunRecord]:
        """Read a run; the spans of a live run as far as they are known (decision 53).

        Args:
            session: its session, which has to match; None for any session.
        """
        if view.view == "full" and session is None:
            row = await database.read(run_reads.get_alone(run_id, self.visibility, LARGE_RUN_BYTES))
            if row is not None:
                return Document(build_document_alone(row, view.cut))

        # Most runs are short and have ended: only the others are read on a thread.
        raw = await database.read(self.run_document(run_id, view, session, replay=False))
        if raw is None:
            raw = await database.read(self.run_document(run_id, view, session), size="large")
        assert raw is not None
        return Document(raw)

    @unit
    def run_document(
        self,
        run_id: str,
        view: RunView = FULL_VIEW,
        session: tuple[str, SessionLocator] | None = None,
        *,
        replay: bool = True,
    ) -> Steps[bytes | None]:
        """Read the document of a run; `session` is an argument of `read_run`.

        Args:
            replay: False to return None if the stored events of the run would have to be read, or
                its texts are large.
        """
        if session is not None:
            yield from self.session(*session)

        is_summary = view.view in SUMMARY_VIEWS
        if not replay and not is_summary:
            text_bytes = yield from run_reads.measure(run_id)
            if text_bytes is not None and text_bytes > LARGE_RUN_BYTES:
                return None

        # The session is visible, so its runs are: a run belongs to the owner of its session.
        visibility = self.visibility if session is None else EVERYONE
        row = yield from run_reads.get(run_id, visibility, summary=is_summary)
        if row is None or (session is not None and row.session_id != session[0]):
            raise errors.NotFound("Run not found")

        spans = self._hosting.find_spans(run_id)
        if not is_summary and not is_settled(row.status):
            if not replay and (spans is None or view.view == "items"):
                return None
            if spans is None:
                # Only the events of a live run have its spans.
                from agentctl.runs.log.fold import read_stored_spans

                spans = yield from read_stored_spans(row)

        find_metrics = self._hosting.find_metrics
        (document,) = yield from read_run_documents([row], view, lambda _: spans, find_metrics)
        return document


def _require_match(row: SessionRow | None, where: SessionLocator) -> SessionRow:
    """Return a session; NotFound if there is none, or the request means another one."""
    if row is None:
        raise errors.NotFound(SESSION_NOT_FOUND)
    if where.type is not None and row.session_type != where.type:
        raise errors.NotFound(SESSION_NOT_FOUND)
    if where.user_id is not None and row.user_id != where.user_id:
        raise errors.NotFound(SESSION_NOT_FOUND)
    return row


class ReadAccess(Access):
    """The access of one principal to databases; its `lookups` find sessions and runs."""

    hosting: ReadHosting

    def __init__(
        self, hosting: ReadHosting, principal: Principal, request_id: str | None = None
    ) -> None:
        super().__init__(hosting, principal, request_id)
        self.lookups = Lookups(hosting, principal)


class ReadFamily(ConfiguredFamily):
    """A family of operations that only read; they find resources with `lookups`."""

    hosting: ReadHosting
    lookups: Lookups

    def __init__(self, access: ReadAccess) -> None:
        super().__init__(access)
        self.lookups = access.lookups
