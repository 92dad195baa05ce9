"""Session records (docs/contract.md "Session records" and "Lists"; decision 147)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.records.audit import CursorMeta
from agentctl.records.kinds import ComponentKind, RunStatus
from agentctl.records.phase import PhaseRecord
from agentctl.records.times import Timestamp

ExportFormat = Literal["jsonl", "json", "markdown"]

SessionView = Literal["full", "summary"]

SESSION_TABLE = "sessions"
"""The only name of a session table. Names from requests never reach SQL (docs/contract.md
"Sessions")."""

SESSION_NOT_FOUND = "Session not found"
"""Public text of a session that does not exist, or that the caller may not see."""

IdleState = Literal["idle", "held", "busy"]
"""`idle`: it can be removed; `held`: by an administrator; `busy`: it has a live or paused run."""


class SessionMetrics(TypedDict):
    """The nine counters, in tokens, summed over every run of the session."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    audio_input_tokens: int
    audio_output_tokens: int
    audio_total_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int


TOKEN_COUNTERS: tuple[str, ...] = tuple(SessionMetrics.__annotations__)
"""The names of the counters, in this order."""


class HoldRecord(TypedDict):
    """The hold of a session: an administrator has decided that it is not deleted."""

    held_at: Timestamp
    held_by: str
    reason: str


class AgentSessionDetailSchema(TypedDict):
    """One agent session with metadata, configuration and history."""

    agent_session_id: str
    session_id: str
    session_name: str
    user_id: NotRequired[str | None]
    session_summary: NotRequired[dict[str, Any] | None]
    session_state: NotRequired[dict[str, Any] | None]
    agent_id: NotRequired[str | None]
    total_tokens: NotRequired[int | None]
    cost: NotRequired[float | None]
    unpriced_tokens: NotRequired[int | None]
    agent_data: NotRequired[dict[str, Any] | None]
    metrics: NotRequired[dict[str, Any] | None]
    metadata: NotRequired[dict[str, Any] | None]
    chat_history: NotRequired[list[dict[str, Any]] | None]
    created_at: NotRequired[Timestamp | None]
    updated_at: NotRequired[Timestamp | None]
    hold: NotRequired[HoldRecord]


class TeamSessionDetailSchema(TypedDict):
    """One team session with metadata, configuration and history."""

    session_id: str
    session_name: str
    user_id: NotRequired[str | None]
    team_id: NotRequired[str | None]
    session_summary: NotRequired[dict[str, Any] | None]
    session_state: NotRequired[dict[str, Any] | None]
    metrics: NotRequired[dict[str, Any] | None]
    team_data: dict[str, Any] | None
    metadata: NotRequired[dict[str, Any] | None]
    chat_history: NotRequired[list[dict[str, Any]] | None]
    created_at: NotRequired[Timestamp | None]
    updated_at: NotRequired[Timestamp | None]
    total_tokens: NotRequired[int | None]
    cost: NotRequired[float | None]
    unpriced_tokens: NotRequired[int | None]
    hold: NotRequired[HoldRecord]


class WorkflowSessionDetailSchema(TypedDict):
    """One workflow session with metadata, configuration and state."""

    session_id: str
    session_name: str
    user_id: NotRequired[str | None]
    workflow_id: NotRequired[str | None]
    workflow_name: NotRequired[str | None]
    session_data: NotRequired[dict[str, Any] | None]
    cost: NotRequired[float | None]
    unpriced_tokens: NotRequired[int | None]
    session_state: NotRequired[dict[str, Any] | None]
    workflow_data: dict[str, Any] | None
    metadata: NotRequired[dict[str, Any] | None]
    created_at: NotRequired[Timestamp | None]
    updated_at: NotRequired[Timestamp | None]
    hold: NotRequired[HoldRecord]


# Every session has every field of its record. `team_data` and `workflow_data` are required, because
# generated clients distinguish the records by their required fields.
SESSION_DETAILS: dict[ComponentKind, type] = {
    "agent": AgentSessionDetailSchema,
    "team": TeamSessionDetailSchema,
    "workflow": WorkflowSessionDetailSchema,
}

SessionDetail = AgentSessionDetailSchema | TeamSessionDetailSchema | WorkflowSessionDetailSchema


class LastRun(TypedDict):
    """The newest run of a session that has no parent, with its end and the end of its work.

    The fields are the same as in the run record; `phase` is the same as with `view=phase`.
    """

    run_id: str
    status: RunStatus
    cancel_requested_at: Timestamp | None
    finished_at: Timestamp | None
    stopped_at: Timestamp | None
    holding: list[str] | None
    phase: PhaseRecord


class SearchMatch(TypedDict):
    """The text that a search found: of a run of the session, or its name (`run_id` is null).

    `snippet` is one line of the text, without HTML and control characters; `highlights` are the
    [start, end) of the found words in it, in characters (code points).
    """

    run_id: str | None
    snippet: str
    highlights: list[list[int]]


class SessionSummary(TypedDict):
    """A session in a list: only columns whose cost does not depend on the history.

    The one of `agent_id`, `team_id` and `workflow_id` that `session_type` names is filled. `cost`
    is in US dollars, without `unpriced_tokens`, whose price is not known; null if no token has a
    price. `run_count` counts all runs, also of members and steps, and background work;
    `history_bytes` is the size of the stored history, `last_status` the status of `last_run`.
    `match` is in the results of a search only. Only administrators see `hold`, of a session that
    is held.
    """

    session_id: str
    session_name: str
    session_type: ComponentKind
    user_id: str | None
    agent_id: str | None
    team_id: str | None
    workflow_id: str | None
    total_tokens: int
    cost: float | None
    unpriced_tokens: int
    run_count: int
    history_bytes: int
    last_status: RunStatus | None
    last_run: LastRun | None
    created_at: Timestamp
    updated_at: Timestamp
    hold: NotRequired[HoldRecord]
    match: NotRequired[SearchMatch]


class SessionHead(SessionSummary):
    """A session without its history, as `view=summary` returns it.

    `turn_count` is the number of its runs without a parent.
    """

    turn_count: int
    metrics: dict[str, Any] | None
    session_summary: dict[str, Any] | None
    session_state: dict[str, Any] | None
    metadata: dict[str, Any] | None


class PageMeta(TypedDict):
    """The position of a page. `total_count` is exact up to 10,000 and capped there.

    `searched_until` is present if the search for rows ended early: the time of the last row that
    was compared with the filters. `next_cursor` continues there.
    """

    page: int
    limit: int
    total_count: int
    total_pages: int
    total_is_capped: bool
    next_cursor: str | None
    searched_until: NotRequired[str]


class SessionPage(TypedDict):
    """A page of sessions."""

    data: list[SessionSummary]
    meta: PageMeta


# No code changes a row. The classes are not frozen because a page creates many rows, and a frozen
# one takes nine times as long to create.
@dataclass(slots=True)
class SummaryRow:
    """The columns of a session that a list shows. Times are microseconds UTC."""

    session_id: str
    session_type: ComponentKind
    component_id: str | None
    component_name: str | None
    user_id: str | None
    session_name: str
    total_tokens: int
    run_count: int
    history_bytes: int
    last_status: str | None
    created_at: int
    updated_at: int
    hold: str | None

    metrics: str
    """The counters and the cost as JSON text."""


@dataclass(slots=True)
class SessionRow(SummaryRow):
    """A stored session. The additional columns are JSON texts."""

    component_data: str | None
    metadata: str | None
    summary: str | None
    session_state: str | None


class IdleSession(TypedDict):
    """A session that has not been used for a given period.

    The one of `agent_id`, `team_id` and `workflow_id` that `session_type` names is filled.
    `run_count` counts all runs, `bytes` the texts of the session and of its runs.
    """

    session_id: str
    session_type: ComponentKind
    agent_id: str | None
    team_id: str | None
    workflow_id: str | None
    user_id: str | None
    run_count: int
    bytes: int
    updated_at: Timestamp
    state: IdleState


class IdlePage(TypedDict):
    """A page of idle sessions, the longest unused first."""

    data: list[IdleSession]
    meta: CursorMeta


class PruneRecord(TypedDict):
    """The end of a removal: each of the requested ids is in one of the lists.

    `removed` do not exist any more, `held` are held, `busy` have a live or paused run, `used` were
    used in the meantime, and `missing` did not exist.
    """

    removed: list[str]
    held: list[str]
    busy: list[str]
    used: list[str]
    missing: list[str]


def hash_ids(ids: Sequence[str]) -> str:
    """Return `sha256:` and the hash of some ids: sorted, each in UTF-8 with a line feed."""
    text = "".join(f"{session_id}\n" for session_id in sorted(ids))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
