"""Requests of operations: filters, pages, new resources and changes, with their bounds.

Both backends use these classes: the local one executes them, the remote one sends them. The server
builds them from HTTP requests, the command line from options.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from agentctl.records.audit import AuditOutcome
    from agentctl.records.kinds import ComponentKind
    from agentctl.records.runs import RunStatus

DEFAULT_LIMIT = 20
MAXIMUM_LIMIT = 100
"""Rows of one page of a list."""

MINIMUM_ID_PREFIX = 8
"""Characters of the shortest beginning of an id that a list is filtered by."""

MAXIMUM_CUT = 1_000_000
"""The largest number of characters at which the texts of a run are cut."""

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

SUMMARY_WAIT = 120.0
"""Maximum seconds of background work, and of the wait for a summary."""

MAXIMUM_DELETED_SESSIONS = 100
"""Sessions of one bulk deletion."""

MAXIMUM_MEMORIES_DELETED = 100
"""Memories of one deletion by id."""

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


ViewName = Literal["full", "summary", "phase", "items"]

ExportFormat = Literal["jsonl", "json", "markdown"]


@dataclass(frozen=True, slots=True)
class RunView:
    """The form of the runs in a response.

    Attributes:
        view: `summary` leaves out the content, the messages and the tool calls; `phase` is the
            summary with the state in words; `items` has the items instead of them.
        cut: characters after which messages and results of tools are cut; None: not at all.
    """

    view: ViewName = "full"
    cut: int | None = None

    @property
    def is_summary(self) -> bool:
        """True if the large columns of a run are not read."""
        return self.view in ("summary", "phase")


FULL_VIEW = RunView()
"""The whole record."""


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """The filter of a list of sessions. `session_name` is a case-insensitive prefix.

    `id_prefix` is the beginning of the id, at least `MINIMUM_ID_PREFIX` characters.
    """

    where: SessionLocator = field(default_factory=SessionLocator)
    component_id: str | None = None
    session_name: str | None = None
    page: Page = field(default_factory=Page)
    id_prefix: str | None = None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The filter of a list of runs across sessions, ordered by `created_at`, newest first.

    Attributes:
        live: only runs without a final status; not together with `status`.
        created_after, created_before: microseconds UTC, the first inclusive, the second exclusive.
        id_prefix: the beginning of the id, at least `MINIMUM_ID_PREFIX` characters.
        form: the form of the runs.
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
    id_prefix: str | None = None
    form: RunView = FULL_VIEW


@dataclass(frozen=True, slots=True)
class SessionRunsQuery:
    """The runs of one session: at most `limit`.

    Attributes:
        after, before: ids of runs of the session, which are not part of the result.
        parent: `none` leaves out the runs of members and steps, and background work.
        order: `asc`: oldest first; `desc`: newest first.
    """

    where: SessionLocator = field(default_factory=SessionLocator)
    limit: int = MAXIMUM_LIMIT
    after: str | None = None
    before: str | None = None
    parent: Literal["none"] | None = None
    order: Literal["asc", "desc"] = "asc"
    form: RunView = FULL_VIEW


FIRST_RUNS = SessionRunsQuery()
"""The first runs of the session."""


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
class MemoryFilter:
    """The filter of a list of memories.

    Attributes:
        topics: only memories that have each of these topics.
        search_content: only memories that contain each word of this text, or a word that begins
            with it, in any case.
        page: sorted by `updated_at` or `created_at`.
    """

    user_id: str | None = None
    agent_id: str | None = None
    team_id: str | None = None
    topics: tuple[str, ...] = ()
    search_content: str | None = None
    page: Page = field(default_factory=lambda: Page(sort_by="updated_at"))


@dataclass(frozen=True, slots=True)
class NewMemory:
    """A memory to store. `user_id` None: the caller's own."""

    memory: str
    topics: tuple[str, ...] = ()
    user_id: str | None = None
    agent_id: str | None = None
    team_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryPatch:
    """New values of a memory; None: unchanged. The topics replace all topics."""

    memory: str | None = None
    topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class MemoryDeletion:
    """Memories to delete: those with the ids, all or none; or with `all` every one of a user.

    Attributes:
        memory_ids: at most `MAXIMUM_MEMORIES_DELETED` ids; not together with `all`.
        user_id: limits the deletion to the memories of this user. An administrator must name the
            user with `all`; for other callers it is the caller.
    """

    memory_ids: tuple[str, ...] = ()
    user_id: str | None = None
    all: bool = False


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run to start (docs/contract.md "Runs").

    A repeat with the same `idempotency_key` (1 to 255 visible ASCII characters) returns the run of
    the first request, for 24 hours. `metadata` is stored with the run and given to its code.
    `session_state` replaces top-level keys of the state of the session. `output_schema` is the JSON
    Schema of a structured result. `dependencies` is given to the code of the run and not stored.
    """

    message: str
    session_id: str | None = None
    user_id: str | None = None
    background: bool = False
    idempotency_key: str | None = None
    metadata: dict[str, Any] | None = None
    session_state: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    dependencies: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EarlierMessage:
    """A message that a request gives to a run in addition to the history of its session.

    It is not stored in the session. `content` is text.
    """

    role: Literal["user", "assistant"]
    content: str


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
