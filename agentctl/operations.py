"""Operations: the things that a caller can do, on the local backend or over HTTP.

`Operations` has two implementations, and the command line does not distinguish them:
`service.Service.operations_for(principal)` in this process, and
`remote.RemoteOperations(url, token)` over HTTP. Every method returns a JSON document
(`records.document.Document`) or raises an `errors.AgentctlError`, so a document never names a
path, host, process or backend. The module also declares the requests, filters and bounds that both
implementations share.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from agentctl.records.accounts import AccountPage, NewAccountRecord
    from agentctl.records.audit import AuditOutcome, AuditPage
    from agentctl.records.authorization import ExplainRecord
    from agentctl.records.document import Document
    from agentctl.records.kinds import ComponentKind
    from agentctl.records.runs import CancelRecord, RunPage, RunRecord, RunStatus
    from agentctl.records.sessions import SessionDetail, SessionPage
    from agentctl.records.system import (
        ApiRecord,
        ConfigRecord,
        HealthRecord,
        InfoRecord,
        MeRecord,
        ModelEntry,
        ReadinessRecord,
    )

__all__ = [
    "ALL_RUNS",
    "BEFORE_FIRST_EVENT",
    "DEFAULT_ACCOUNT_DAYS",
    "DEFAULT_CANCEL_WAIT",
    "DEFAULT_LIMIT",
    "DEFAULT_LOCATOR",
    "DELETION_WAIT",
    "MAXIMUM_ACCOUNT_DAYS",
    "MAXIMUM_CANCEL_WAIT",
    "MAXIMUM_DELETED_SESSIONS",
    "MAXIMUM_EVENT_NUMBER",
    "MAXIMUM_LIMIT",
    "MAXIMUM_OFFSET",
    "MAXIMUM_REASON_LENGTH",
    "MAXIMUM_SCOPES",
    "MAXIMUM_SESSION_NAME_LENGTH",
    "MAXIMUM_USER_ID_LENGTH",
    "AccountFilter",
    "AuditFilter",
    "BulkDeletion",
    "CancelRequest",
    "ExplainRequest",
    "Grant",
    "LocalOperations",
    "NewAccount",
    "NewSession",
    "Operations",
    "Page",
    "ResumeRequest",
    "RunFilter",
    "RunRequest",
    "SessionFilter",
    "SessionLocator",
    "SessionPatch",
    "SessionRunsQuery",
    "StreamEvent",
]

DEFAULT_LIMIT = 20
MAXIMUM_LIMIT = 100
"""Rows of one page of a list."""

MAXIMUM_OFFSET = 10_000
"""Rows that a page number can skip; a cursor goes further (docs/contract.md "Lists")."""

DEFAULT_CANCEL_WAIT = 1.0
MAXIMUM_CANCEL_WAIT = 30.0
"""Seconds that a cancel waits for the end of the run (docs/contract.md "Cancel")."""

MAXIMUM_REASON_LENGTH = 500
"""Characters of the reason of a cancel."""

BEFORE_FIRST_EVENT = -1
"""The number before that of the first event of a run."""

MAXIMUM_EVENT_NUMBER = 10**18 - 1
"""The largest event number that a request may name."""

DELETION_WAIT = 10.0
"""Seconds that a deletion with `cancel` waits for the runs (docs/contract.md "Sessions")."""

MAXIMUM_DELETED_SESSIONS = 100
"""Sessions of one bulk deletion."""

MAXIMUM_SESSION_NAME_LENGTH = 255
"""Characters of a session name, which is indexed."""

MAXIMUM_USER_ID_LENGTH = 255
"""Characters of a user id, as of the `sub` claim (docs/contract.md "Claims")."""

MAXIMUM_SCOPES = 256
"""Scopes of a token or a service account; a JWT with more grants nothing."""

DEFAULT_ACCOUNT_DAYS = 90
MAXIMUM_ACCOUNT_DAYS = 3_650
"""Days until a service account expires."""


@dataclass(frozen=True, slots=True)
class SessionLocator:
    """The database and table of a session, and conditions on the session.

    Attributes:
        type: the required type of the session; None: any type.
        user_id: limits the operation to the sessions of this user; it never widens visibility.
        db_id: id of a configured database; None: the default database.
        table: `sessions` or None; another name is a NotFound.
    """

    type: ComponentKind | None = None
    user_id: str | None = None
    db_id: str | None = None
    table: str | None = None


DEFAULT_LOCATOR = SessionLocator()
"""Any session with the id, in the default database."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: a page number from 1, or the cursor of the previous page."""

    limit: int = DEFAULT_LIMIT
    page: int = 1
    cursor: str | None = None
    sort_by: Literal["created_at", "updated_at"] = "created_at"
    sort_order: Literal["asc", "desc"] = "desc"


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """The filter of a list of sessions. `session_name` is a case-insensitive prefix."""

    where: SessionLocator = field(default_factory=SessionLocator)
    component_id: str | None = None
    session_name: str | None = None
    page: Page = field(default_factory=Page)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The filter of a list of runs across sessions, ordered by `created_at`, newest first.

    Attributes:
        live: only runs without a final status; not together with `status`.
        created_after, created_before: microseconds UTC, the first inclusive, the second exclusive.
    """

    status: RunStatus | None = None
    component_type: ComponentKind | None = None
    component_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    db_id: str | None = None
    page: Page = field(default_factory=Page)
    live: bool = False
    created_after: int | None = None
    created_before: int | None = None


@dataclass(frozen=True, slots=True)
class SessionRunsQuery:
    """The runs of one session, oldest first: all, or `limit` runs after the run id `after`."""

    where: SessionLocator = field(default_factory=SessionLocator)
    limit: int | None = None
    after: str | None = None


ALL_RUNS = SessionRunsQuery()
"""Every run of the session, oldest first."""


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to create. `session_id` None: the service creates an id."""

    type: ComponentKind = "agent"
    session_id: str | None = None
    session_name: str = ""
    session_state: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    user_id: str | None = None
    component_id: str | None = None
    db_id: str | None = None


@dataclass(frozen=True, slots=True)
class SessionPatch:
    """New values of a session; each one replaces the whole value.

    `changes` maps any of `session_name`, `session_state` and `metadata` to its new value.
    """

    changes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BulkDeletion:
    """Sessions to delete in one transaction, all or none; at most `MAXIMUM_DELETED_SESSIONS`."""

    session_ids: tuple[str, ...]
    db_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run to start (docs/contract.md "Runs").

    A repeat with the same `idempotency_key` (1 to 255 visible ASCII characters) returns the run of
    the first request, for 24 hours.
    """

    message: str
    session_id: str | None = None
    user_id: str | None = None
    background: bool = False
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """A cancel. `wait` is the time in seconds to wait for the end of the run."""

    session_id: str | None = None
    wait: float = DEFAULT_CANCEL_WAIT
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """The position at which a stream is resumed: after the event with number `after`."""

    session_id: str | None = None
    after: int = BEFORE_FIRST_EVENT


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """A request to explain.

    Attributes:
        method: HTTP method.
        path: the request target: percent-encoded, with or without a query.
        token: the credential of the request, without the word Bearer. Empty: no credential. None:
            the caller's credential if it has one, which over HTTP is that of its request.
    """

    method: str
    path: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Grant:
    """A scope of a service account. `effect` is `allow`, the only value."""

    scope: str
    effect: str = "allow"


@dataclass(frozen=True, slots=True)
class NewAccount:
    """A service account to create (docs/contract.md "Service accounts").

    Attributes:
        name: for people; unique among active accounts.
        scopes: 1 to `MAXIMUM_SCOPES` scopes that the caller has.
        expires_in_days: 1 to `MAXIMUM_ACCOUNT_DAYS`; None: `DEFAULT_ACCOUNT_DAYS`.
        never_expires: not together with `expires_in_days`.
        allow_privileged_scopes: required for scopes that write, delete, administer or manage
            service accounts.
    """

    name: str
    scopes: tuple[Grant, ...]
    expires_in_days: int | None = None
    never_expires: bool = False
    allow_privileged_scopes: bool = False


@dataclass(frozen=True, slots=True)
class AccountFilter:
    """The filter of a list of service accounts, revoked ones included, by `created_at`."""

    name: str | None = None
    page: Page = field(default_factory=Page)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """The filter of a list of audit entries, newest first. None: no condition.

    Attributes:
        principal: the authenticated caller: `sub`, `sa:<id>` or `local:<user>`.
        operation: an operation id, or `authenticate` for rejected credentials.
        since: microseconds UTC, inclusive.
        limit: entries of the page, 1 to `MAXIMUM_LIMIT`.
        cursor: `meta.next_cursor` of the previous page.
    """

    principal: str | None = None
    operation: str | None = None
    outcome: AuditOutcome | None = None
    since: int | None = None
    limit: int = DEFAULT_LIMIT
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One server-sent event of a run.

    Attributes:
        seq: number in the stream, from 0, ascending.
        name: `RunStarted`, `TeamRunContent`, ... (docs/contract.md "Events").
        data: one line of JSON, UTF-8; always with `run_id`, `session_id`, `created_at`, `event`.
    """

    seq: int
    name: str
    data: bytes


class Operations(Protocol):
    """The operations of one principal. They raise `errors.AgentctlError`."""

    # Instance
    async def get_api(self) -> Document[ApiRecord]: ...
    async def get_health(self) -> Document[HealthRecord]: ...
    async def get_readiness(self) -> Document[ReadinessRecord]: ...
    async def get_info(self) -> Document[InfoRecord]: ...
    async def get_config(self) -> Document[ConfigRecord]: ...
    async def get_models(self) -> Document[list[ModelEntry]]: ...
    async def get_me(self) -> Document[MeRecord]: ...

    async def explain_auth(self, request: ExplainRequest) -> Document[ExplainRecord]:
        """Explain which check decides a request, and its status; for administrators."""
        ...

    async def get_audit(self, filter: AuditFilter) -> Document[AuditPage]:
        """Return a page of the audit log, newest first."""
        ...

    # Components
    async def get_components(self, kind: ComponentKind) -> Document[list[Any]]:
        """Return the configured components of a kind that the caller may read."""
        ...

    async def get_component(self, kind: ComponentKind, component_id: str) -> Document[Any]: ...

    # Runs
    async def create_run(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> Document[RunRecord]:
        """Start a run and wait for its end; with `background` return when its row exists."""
        ...

    def stream_run(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> AsyncIterator[StreamEvent]:
        """Start a run and yield its events. Errors are raised before the first event."""
        ...

    def resume_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        """Yield the events of a run after a position; closing the stream does not stop the run.

        Errors are raised before the first event.
        """
        ...

    async def get_runs(self, filter: RunFilter) -> Document[RunPage]: ...

    async def get_run(self, run_id: str, *, db_id: str | None = None) -> Document[RunRecord]: ...

    async def list_component_runs(
        self, kind: ComponentKind, component_id: str, filter: RunFilter
    ) -> Document[RunPage]: ...

    async def get_component_run(
        self, kind: ComponentKind, component_id: str, run_id: str, *, session_id: str | None = None
    ) -> Document[RunRecord]: ...

    async def cancel_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: CancelRequest
    ) -> Document[CancelRecord]: ...

    # Sessions
    async def get_sessions(self, filter: SessionFilter) -> Document[SessionPage]: ...
    async def create_session(self, session: NewSession) -> Document[SessionDetail]: ...

    async def get_session_by_id(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[SessionDetail]: ...

    async def update_session(
        self, session_id: str, patch: SessionPatch, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[SessionDetail]: ...

    async def rename_session(
        self, session_id: str, session_name: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[SessionDetail]: ...

    async def delete_session(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR, *, cancel: bool = False
    ) -> None: ...

    async def delete_sessions(self, deletion: BulkDeletion) -> None: ...

    async def get_session_runs(
        self, session_id: str, query: SessionRunsQuery = ALL_RUNS
    ) -> Document[list[RunRecord]]: ...

    async def get_session_run(
        self, session_id: str, run_id: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[RunRecord]: ...

    # Service accounts
    async def create_service_account(self, account: NewAccount) -> Document[NewAccountRecord]:
        """Create an account. The document contains its token, which is not shown again."""
        ...

    async def list_service_accounts(self, filter: AccountFilter) -> Document[AccountPage]: ...

    async def revoke_service_account(self, account_id: str) -> None: ...


class LocalOperations(Operations, Protocol):
    """The operations of the local backend, and the methods that the server calls in addition.

    The `require_` methods raise the NotFound of an operation without executing it, because the
    server reports a resource that does not exist before an invalid value.
    """

    def require_database(self, where: SessionLocator) -> None:
        """Require the database and the table that `where` names.

        Raises:
            NotFound: there is no such database or table.
        """
        ...

    def require_component(self, kind: ComponentKind, component_id: str) -> None:
        """Require a configured component.

        Raises:
            NotFound: there is no component of this kind and id.
        """
        ...

    async def require_session(self, session_id: str, where: SessionLocator) -> None:
        """Require a session that the caller sees.

        Raises:
            NotFound: it does not exist, is not visible, or does not match `where`.
        """
        ...

    async def require_run(
        self, kind: ComponentKind, component_id: str, run_id: str, session_id: str | None
    ) -> None:
        """Require a run of this component, and of this session unless `session_id` is None.

        Raises:
            NotFound: there is no such run, or it is not visible to the caller.
        """
        ...

    async def open_resumed_stream(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncGenerator[StreamEvent]:
        """Return the events of a run after `request.after`, stored and future ones.

        Raises the errors of `resume_run` at the call, before an event exists.
        """
        ...

    async def record_refusal(
        self, operation: str, path_params: Mapping[str, str], error: Exception
    ) -> None:
        """Write the audit entry of a request that failed before its operation was called."""
        ...
