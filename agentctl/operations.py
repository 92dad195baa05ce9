"""The port: what a caller can do.

Two implementations stand behind it, and the command line cannot tell them apart:
`service.Service.acting_as(principal)` here, and `remote.RemoteOperations(url, token)` over HTTP.
Every method returns a JSON document (`records.document.Document`) or raises an
`errors.AgentctlError`; nothing else. So no document names a path, host, process or door.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
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
    "MAXIMUM_EVENT_NUMBER",
    "MAXIMUM_LIMIT",
    "MAXIMUM_OFFSET",
    "MAXIMUM_REASON_LENGTH",
    "AccountFilter",
    "AuditFilter",
    "BulkDeletion",
    "CancelRequest",
    "ExplainRequest",
    "Grant",
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
MAXIMUM_OFFSET = 10_000
"""Beyond this many rows a list is read by cursor (contract.md 4)."""

DEFAULT_CANCEL_WAIT = 1.0
MAXIMUM_CANCEL_WAIT = 30.0
"""Seconds that a cancel waits for the run to end (contract.md 5)."""

MAXIMUM_REASON_LENGTH = 500
"""Characters of the reason of a cancel."""

BEFORE_FIRST_EVENT = -1
"""The number before that of a run's first event."""

MAXIMUM_EVENT_NUMBER = 10**18 - 1
"""No event has a larger number."""

DELETION_WAIT = 10.0
"""Seconds that a deletion with `cancel` waits for the session's runs to end (contract.md 4)."""

DEFAULT_ACCOUNT_DAYS = 90
MAXIMUM_ACCOUNT_DAYS = 3_650
"""Days that a service account is good for."""


@dataclass(frozen=True, slots=True)
class SessionLocator:
    """Which session is meant, and where it is kept.

    Attributes:
        type: the kind that the session must be of, or None for whatever is stored.
        user_id: narrows to this user's sessions, never widens.
        db_id: id of a configured database; None for the default one.
        table: `sessions` or None; any other name is not found.
    """

    type: ComponentKind | None = None
    user_id: str | None = None
    db_id: str | None = None
    table: str | None = None


DEFAULT_LOCATOR = SessionLocator()
"""Whatever is stored under the id, in the default database."""


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list: a page from 1, or what follows a cursor from an earlier answer."""

    limit: int = DEFAULT_LIMIT
    page: int = 1
    cursor: str | None = None
    sort_by: Literal["created_at", "updated_at"] = "created_at"
    sort_order: Literal["asc", "desc"] = "desc"


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions to list. `session_name` is a prefix, compared without case."""

    where: SessionLocator = field(default_factory=SessionLocator)
    component_id: str | None = None
    session_name: str | None = None
    page: Page = field(default_factory=Page)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list, across sessions; newest first, by `created_at` only.

    Attributes:
        live: only those that have not ended; not together with `status`.
        created_after, created_before: from this time on, and before that one; microseconds UTC.
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
    """Which runs of one session: all, oldest first, unless `limit` and `after` (a run id) say."""

    where: SessionLocator = field(default_factory=SessionLocator)
    limit: int | None = None
    after: str | None = None


ALL_RUNS = SessionRunsQuery()
"""Every run of the session, oldest first."""


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to create. `session_id` None: one is made."""

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
    """New values for a session; each given one replaces the whole value.

    `changes` maps any of `session_name`, `session_state`, `metadata` to its new value.
    """

    changes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BulkDeletion:
    """Sessions to delete together: all or none. At most 100."""

    session_ids: tuple[str, ...]
    db_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run to start (contract.md 5).

    `idempotency_key` names the request: made again with the same key, it is answered with the run
    of the first one, for 24 hours. 1 to 255 visible ASCII characters.
    """

    message: str
    session_id: str | None = None
    user_id: str | None = None
    background: bool = False
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """A cancel: `wait` is how many seconds to wait for the run to end."""

    session_id: str | None = None
    wait: float = DEFAULT_CANCEL_WAIT
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """Where to go on following a run: behind the event with number `after`."""

    session_id: str | None = None
    after: int = BEFORE_FIRST_EVENT


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """A request to explain.

    Attributes:
        method: HTTP method.
        path: as in a request target: percent-encoded, with a query or without.
        token: the credential that it would be made with, without the word Bearer. Empty: none.
            None: the caller's own, where it has one, which over HTTP is that of its request.
    """

    method: str
    path: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Grant:
    """A scope for a service account. `effect` is `allow`; nothing else is understood yet."""

    scope: str
    effect: str = "allow"


@dataclass(frozen=True, slots=True)
class NewAccount:
    """A service account to create (contract.md 6).

    Attributes:
        name: for people; no other account that is good has it.
        scopes: at least one, of those that the caller holds.
        expires_in_days: 1 to 3650; None: 90.
        never_expires: not together with `expires_in_days`.
        allow_privileged_scopes: scopes to write, to delete, to administer and to manage service
            accounts are granted with this only.
    """

    name: str
    scopes: tuple[Grant, ...]
    expires_in_days: int | None = None
    never_expires: bool = False
    allow_privileged_scopes: bool = False


@dataclass(frozen=True, slots=True)
class AccountFilter:
    """Which service accounts to list, revoked ones too; by `created_at` only."""

    name: str | None = None
    page: Page = field(default_factory=Page)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which rows of the audit to list, newest first. None: whatever.

    Attributes:
        principal: who really called: `sub`, `sa:<id>`, `local:<user>`.
        operation: an operation id, or `authenticate` for refused credentials.
        since: from this time on; microseconds UTC.
        limit: how many, 1 to 100.
        cursor: `meta.next_cursor` of an earlier answer: what follows it.
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
        seq: its number in the stream, from 0; numbers grow.
        name: `RunStarted`, `TeamRunContent`, ... (contract.md 5).
        data: one line of JSON, UTF-8; always with `run_id`, `session_id`, `created_at`, `event`.
    """

    seq: int
    name: str
    data: bytes


class Operations(Protocol):
    """What a caller can do, as one principal. Failures are `errors.AgentctlError`."""

    # What the instance says of itself
    async def get_api(self) -> Document[ApiRecord]: ...
    async def get_health(self) -> Document[HealthRecord]: ...
    async def get_readiness(self) -> Document[ReadinessRecord]: ...
    async def get_info(self) -> Document[InfoRecord]: ...
    async def get_config(self) -> Document[ConfigRecord]: ...
    async def get_models(self) -> Document[list[ModelEntry]]: ...
    async def get_me(self) -> Document[MeRecord]: ...

    async def explain_auth(self, request: ExplainRequest) -> Document[ExplainRecord]:
        """What a request would be answered, and which check decides it: for administrators."""
        ...

    async def get_audit(self, filter: AuditFilter) -> Document[AuditPage]:
        """Who did what, and what was refused to whom."""
        ...

    # Components
    async def get_components(self, kind: ComponentKind) -> Document[list[Any]]:
        """The configured components of a kind that the caller may read."""
        ...

    async def get_component(self, kind: ComponentKind, component_id: str) -> Document[Any]: ...

    # Runs
    async def create_run(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> Document[RunRecord]:
        """Start a run and wait for its end, or with `background` only for its row."""
        ...

    def stream_run(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> AsyncIterator[StreamEvent]:
        """Start a run and follow it. What is refused is raised before the first event."""
        ...

    def resume_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        """Follow a run from some event on, whoever has started it. Leaving it does not stop it.

        What is refused is raised before the first event.
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
        """Make an account. The document has its token, which is told this once."""
        ...

    async def list_service_accounts(self, filter: AccountFilter) -> Document[AccountPage]: ...

    async def revoke_service_account(self, account_id: str) -> None: ...
