"""Requests of operations: filters, pages, new resources and changes, with their bounds.

The server builds them from HTTP requests, the command line from options, and both backends use
them. A field that is a query parameter is declared as one; other fields are in the body. This
module has the bounds, the pages, and the requests of sessions and runs; each other module has the
requests of one noun.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from agentctl.interface.declarations import Header, Matches, Option, Query
from agentctl.interface.requests.lists import (
    STATUS_OPTION,
    CreatedAfter,
    CreatedBefore,
    ErrorFilter,
    MetadataFilter,
    TagFilter,
    UpdatedAfter,
    UpdatedBefore,
)
from agentctl.records.kinds import ComponentKind, RunStatus
from agentctl.records.run_messages import LateMessage
from agentctl.records.text import IDEMPOTENCY_KEY
from agentctl.records.times import ParsedTimestamp

IdempotencyKey = Annotated[
    str | None,
    Header(
        "A unique name of this request; a repeated request with the same key changes nothing",
        alias="Idempotency-Key",
        pattern=IDEMPOTENCY_KEY,
    ),
]

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

MAXIMUM_REASON_LENGTH = 500  # characters

BEFORE_FIRST_EVENT = -1
MAXIMUM_EVENT_NUMBER = 10**18 - 1
"""The least and the largest event number that a request may name; a run starts with 0."""

DELETION_WAIT = 10.0
"""Seconds that a deletion with `cancel` waits for the runs (docs/contract.md "Sessions")."""

SUMMARY_WAIT = 120.0
"""Maximum seconds of background work, and of the wait for a summary."""

MAXIMUM_RUN_FILES = 16
"""Files of the message of a run."""

MAXIMUM_CLIENT_TOOLS = 128
"""Tools of the caller of a run; providers accept about as many."""

MAXIMUM_DELETED_SESSIONS = 100
"""Sessions of one deletion by id."""

MAXIMUM_SESSION_NAME_LENGTH = 255
MAXIMUM_USER_ID_LENGTH = 255
"""Characters of a session name, which is indexed, and of a user id, as of the `sub` claim."""

UserId = Annotated[
    str | None,
    Query("Only data of this user, within the data that the caller can see"),
    Option("--user", "USER", "Filter by user"),
]
DatabaseId = Annotated[
    str | None,
    Query("Id of the database (default: the first database)"),
    Option("--db", "ID", "Database id (default: the first database)"),
]
ComponentId = Annotated[str | None, Query("Only of this agent, team or workflow")]
OfSession = Annotated[
    str | None,
    Query("Only runs of this session"),
    Option("--session", "ID", "Filter by session", noun="session"),
]
IdPrefix = Annotated[
    str | None, Query("Only those whose id begins with this text", min_length=MINIMUM_ID_PREFIX)
]
ParentFilter = Annotated[
    Literal["none"] | None,
    Query("`none` leaves out the runs of members and steps, and background work"),
]
Limit = Annotated[
    int,
    Query("Maximum number of results", ge=1, le=MAXIMUM_LIMIT),
    Option("--limit", "NUMBER", "Maximum number of results"),
]
PageNumber = Annotated[
    int,
    Query("Page number; after row 10,000 use `cursor`", ge=1),
    Option("--page", "NUMBER", "Page number"),
]
SortOrder = Annotated[
    Literal["asc", "desc"],
    Query("Oldest first or newest first"),
    Option("--sort-order", "ORDER", "Sort order: desc (newest first) or asc (oldest first)"),
]

PageCursor = Annotated[str | None, Query("`meta.next_cursor` of the previous page", min_length=1)]

_KIND = Option("--type", "TYPE", "Filter by component type: agent, team or workflow")
CURSOR_OPTION = Option("--cursor", "CURSOR", "Continue after the previous page")


@dataclass(frozen=True, slots=True)
class SessionLocator:
    """The database and table of a session, and conditions on the session.

    `user_id` never widens visibility. Another `table` than `sessions` is a NotFound.
    """

    type: Annotated[
        ComponentKind | None,
        Query("Type of the session (default: the type of the stored session)"),
        _KIND,
    ] = None
    user_id: UserId = None
    db_id: DatabaseId = None
    table: Annotated[
        str | None, Query("`sessions`, the only table"), Option("--table", "NAME", "Session table")
    ] = None


DEFAULT_LOCATOR = SessionLocator()


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list: a page number from 1, or the cursor of the previous page."""

    limit: Limit = DEFAULT_LIMIT
    page: PageNumber = 1
    cursor: Annotated[
        str | None,
        Query(
            "`meta.next_cursor` of the previous page; takes precedence over `page`", min_length=1
        ),
        CURSOR_OPTION,
    ] = None
    sort_by: Annotated[
        Literal["created_at", "updated_at"],
        Query("Field to sort by"),
        Option("--sort-by", "TIME", "Sort key: created_at or updated_at"),
    ] = "created_at"
    sort_order: SortOrder = "desc"


PAGE_LAST = (..., "limit", "page", "cursor", "sort_order")
"""The order of parameters that ends with the parameters of the page."""

Cut = Annotated[
    int | None,
    Query(
        "Characters after which messages and results of tools are cut; by default they are whole",
        ge=1,
        le=MAXIMUM_CUT,
    ),
]


@dataclass(frozen=True, slots=True)
class RunView:
    """The form of the runs in a response."""

    view: Annotated[
        Literal["full", "summary", "phase", "items"],
        Query("`summary`: no content and messages; `phase`: its state, too; `items`: all in order"),
    ] = "full"
    cut: Cut = None


FULL_VIEW = RunView()
SUMMARY_VIEW = RunView("summary")


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """The filter of a list of sessions."""

    where: SessionLocator = field(default_factory=SessionLocator)
    component_id: Annotated[ComponentId, Option("--component", "ID", "Filter by component")] = None
    session_name: Annotated[
        str | None,
        Query("Only sessions whose name starts with this text, in any case"),
        Option("--name", "PREFIX", "Filter by the beginning of the name"),
    ] = None
    page: Page = field(default_factory=Page)
    id_prefix: IdPrefix = None
    status: Annotated[
        RunStatus | None, Query("Only sessions whose newest run has this status"), STATUS_OPTION
    ] = None
    created_after: CreatedAfter = None
    created_before: CreatedBefore = None
    updated_after: UpdatedAfter = None
    updated_before: UpdatedBefore = None
    metadata: MetadataFilter = ()
    tag: TagFilter = ()
    error: ErrorFilter = None
    search: Annotated[
        str | None,
        Query("Only sessions with all these words in a run or the name; sorted by `created_at`"),
        Option("--search", "WORDS", "Find sessions by words of messages, answers and names"),
    ] = None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The filter of a list of runs across sessions, ordered by `created_at`, newest first.

    A live run is one without a final status. Times are microseconds UTC.
    """

    status: Annotated[RunStatus | None, Query("Only runs with this status"), STATUS_OPTION] = None
    component_type: Annotated[
        ComponentKind | None, Query("Only runs of this kind of component"), _KIND
    ] = None
    component_id: Annotated[
        ComponentId, Option("--component", "ID", "Filter by component id, of any type")
    ] = None
    session_id: OfSession = None
    user_id: UserId = None
    db_id: DatabaseId = None
    page: Page = field(default_factory=Page)
    live: Annotated[
        bool,
        Query("Only live runs; cannot be combined with `status`"),
        Option("--live", None, "Only live runs: PENDING or RUNNING"),
    ] = False
    created_after: Annotated[
        ParsedTimestamp | None, Query("Only runs created at or after this time")
    ] = None
    created_before: Annotated[
        ParsedTimestamp | None, Query("Only runs created before this time")
    ] = None
    id_prefix: IdPrefix = None
    form: RunView = FULL_VIEW
    finished_after: Annotated[
        ParsedTimestamp | None, Query("Only runs ended since then"), Matches("ended")
    ] = None
    at_work: Annotated[
        bool,
        Query("Only ended runs whose work still continues"),
        Option("--at-work", None, "Only ended runs whose work still continues"),
        Matches("ended"),
    ] = False
    finished_before: Annotated[
        ParsedTimestamp | None, Query("Only runs that ended before this time"), Matches("ended")
    ] = None
    error_code: Annotated[
        str | None,
        Query("Only failed runs with this error code"),
        Option("--error-code", "CODE", "Filter by the error code of failed runs", any_case=True),
        Matches("failed"),
    ] = None
    model: Annotated[
        str | None,
        Query("Only ended runs that called this model first; needs a time, or a session"),
        Option("--model", "ID", "Filter finished runs by the first model they called"),
        Matches("ended"),
    ] = None
    version: Annotated[
        str | None,
        Query("Only runs of this version of their component; needs a time, or a session"),
        Option("--version", "VERSION", "Filter by version of the component"),
    ] = None
    parent: ParentFilter = None
    metadata: MetadataFilter = ()
    tag: TagFilter = ()
    error: Annotated[ErrorFilter, Matches("failed")] = None
    search: Annotated[
        str | None,
        Query("Only ended runs with all these words in message and answer; sorted by session"),
        Option("--search", "WORDS", "Find runs by words of their messages and answers"),
        Matches("ended"),
    ] = None


@dataclass(frozen=True, slots=True)
class VersionFilter:
    """A page of the versions of a component, newest first."""

    limit: Limit = DEFAULT_LIMIT
    cursor: Annotated[PageCursor, CURSOR_OPTION] = None


@dataclass(frozen=True, slots=True)
class DiffFilter:
    """The two versions that are compared."""

    before: Annotated[
        str | None, Query("The earlier version (default: the second newest version)")
    ] = None
    after: Annotated[str | None, Query("The later version; by default the newest")] = None


@dataclass(frozen=True, slots=True)
class SessionRunsQuery:
    """The runs of one session: at most `limit`."""

    where: SessionLocator = field(default_factory=SessionLocator)
    limit: Limit = MAXIMUM_LIMIT
    after: Annotated[
        str | None,
        Query("Only runs after the run with this id", min_length=1),
        Option("--after", "RUN_ID", "Return only runs after this run", noun="run"),
    ] = None
    before: Annotated[str | None, Query("Only runs before the run with this id", min_length=1)] = (
        None
    )
    parent: ParentFilter = None
    order: SortOrder = "asc"
    form: RunView = FULL_VIEW


FIRST_RUNS = SessionRunsQuery()


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to create. `session_id` None: the service creates an id."""

    type: Annotated[ComponentKind, Query("Type of the session")] = "agent"
    session_id: str | None = None
    session_name: str = ""
    session_state: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    user_id: str | None = None
    component_id: str | None = None
    db_id: DatabaseId = None


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
    db_id: DatabaseId = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run to start (docs/contract.md "Runs").

    `message` may be absent if there are `files`, or an `input`: an object for an agent in code,
    which is stored with the run. A repeat with the same `idempotency_key` (1 to 255 visible ASCII
    characters) returns the run of the first request, for 24 hours. `metadata` is stored with the
    run and given to its code. `session_state` replaces top-level keys of the state of the session.
    `output_schema` is the JSON Schema of a structured result. `dependencies` is given to the code
    of the run and not stored. `client_tools` are tools that the caller executes, each with `name`,
    `description` and `parameters`. `tool_choice` is `required`, or the name of one of them. A run
    without `session_history` gets no earlier runs of its session, and its answer ends before the
    first text of `stop`; no body has these two fields.
    `files` are the ids of the files of the message.
    """

    message: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    background: bool = False
    idempotency_key: str | None = None
    metadata: dict[str, Any] | None = None
    session_state: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    dependencies: dict[str, Any] | None = None
    input: dict[str, Any] | None = None
    client_tools: list[dict[str, Any]] | None = None
    tool_choice: str | None = None
    session_history: bool = True
    stop: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EarlierMessage:
    """A message that a request gives to a run in addition to the history of its session.

    It is not stored in the session. `content` is text.

    Attributes:
        calls: the tool calls of an answer: `id`, `name` and `arguments`, an object.
        call_id, tool_name: the call of a result, for the role `tool`.
        files: the ids of the files of a message of the user.
    """

    role: Literal["user", "assistant", "tool"]
    content: str
    calls: tuple[dict[str, Any], ...] = ()
    call_id: str | None = None
    tool_name: str | None = None
    files: tuple[str, ...] = ()

    @property
    def is_of_tools(self) -> bool:
        """True for an answer with tool calls, and for a result."""
        return bool(self.calls) or self.role == "tool"


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """A cancel."""

    session_id: Annotated[
        str | None, Query("Session of the run; required unless the caller is an administrator")
    ] = None
    wait: Annotated[
        float, Query("Seconds to wait for the run to stop", ge=0, le=MAXIMUM_CANCEL_WAIT)
    ] = DEFAULT_CANCEL_WAIT
    reason: Annotated[
        str | None, Query("Reason to record with the run", max_length=MAXIMUM_REASON_LENGTH)
    ] = None


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """A message to a run that works.

    Attributes:
        late: the fate of a message that no model call of the run gets any more.
    """

    message: str
    late: LateMessage = "next_run"
    idempotency_key: IdempotencyKey = None


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """The position at which a stream is resumed: after the event with number `after`."""

    session_id: str | None = None
    after: int = BEFORE_FIRST_EVENT


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """A request to explain.

    Attributes:
        path: the request target: percent-encoded, with or without a query.
        token: the credential of the request, without the word Bearer. Empty: no credential. None:
            the caller's credential if it has one, which over HTTP is that of its request.
    """

    method: str
    path: str
    token: str | None = field(default=None, repr=False)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRequest:
    """The retry of a run that has ended.

    Attributes:
        confirm: `confirm` of the plan that was shown; required if the run repeats effects.
        output_schema, dependencies: as of `RunRequest`; those of the origin are not stored.
    """

    background: bool = False
    confirm: str | None = None
    output_schema: dict[str, Any] | None = None
    dependencies: dict[str, Any] | None = None
    idempotency_key: IdempotencyKey = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest(RetryRequest):
    """The fork of a run that has ended, after its first `at` messages.

    Attributes:
        message: the next message; None repeats that of the run, or goes on after its tool calls.
        agent_id, team_id: another component, which gets the conversation; None for that of the run.
        session_id: the session of the run, or a new one, which None creates.
    """

    at: int
    message: str | None = None
    agent_id: str | None = None
    team_id: str | None = None
    session_id: str | None = None
