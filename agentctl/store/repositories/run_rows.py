"""Runs as repositories take and give them. For rows the same holds as in `session_rows`."""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.store.listing import Cursor, Order
from agentctl.store.visibility import Visibility

__all__ = ["NewRun", "RunEnd", "RunQuery", "RunRow", "RunState"]


@dataclass(slots=True)
class RunRow:
    """A run as it is stored. Times are microseconds, flags 0 or 1.

    `metrics`, `history`, `tools` and `messages` are JSON texts, None until the run has ended.
    """

    run_id: str
    session_id: str
    seq: int
    parent_run_id: str | None
    component_type: str
    component_id: str
    user_id: str | None
    status: str
    background: int
    attempt: int
    owner: str | None
    cancel_requested_at: int | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    stopped_at: int | None
    late_result: int
    error_code: str | None
    error_detail: str | None
    metrics: str | None
    history: str | None
    input: str
    content: str | None
    tools: str | None
    messages: str | None


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run stands, without what it holds."""

    run_id: str
    session_id: str
    parent_run_id: str | None
    component_type: str
    component_id: str
    user_id: str | None
    status: str
    attempt: int
    owner: str | None
    cancel_requested_at: int | None
    cancel_requested_by: str | None
    cancel_reason: str | None
    finished_at: int | None
    stopped_at: int | None
    error_code: str | None
    error_detail: str | None


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to create.

    Attributes:
        owner: the worker that will claim it, if that is known.
        session_name: the name that its session gets when it has none; None for a member's run.
    """

    run_id: str
    session_id: str
    parent_run_id: str | None
    component_type: str
    component_id: str
    user_id: str | None
    background: bool
    input: str
    owner: str | None
    created_at: int
    session_name: str | None = None


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended: COMPLETED, ERROR or CANCELLED, and what it leaves.

    Attributes:
        attempt: of the run that this is the end of; an older one is refused.
        history: JSON array of what `chat_history` shows of it (contract.md 3).
        metrics: JSON object with its own use of tokens, without that of its children.
        stopped_at: when the work itself is known to have stopped, or None.
        late_result: whether a result came after the end and was dropped.
        cancel_reason: takes the place of the reason that was given with the request for a cancel.
    """

    run_id: str
    attempt: int
    status: str
    content: str | None
    history: str | None
    messages: str | None
    tools: str | None
    metrics: str | None
    error_code: str | None
    error_detail: str | None
    finished_at: int
    stopped_at: int | None
    late_result: bool = False
    cancel_reason: str | None = None


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to list, across sessions, by the time of their creation.

    Attributes:
        live: only those that have not ended; not together with `status`.
        created_after, created_before: from this time on, and before that one, in microseconds.
    """

    visibility: Visibility
    status: str | None = None
    component_type: str | None = None
    component_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    sort_order: Order = "desc"
    limit: int = 20
    offset: int = 0
    after: Cursor | None = None
    live: bool = False
    created_after: int | None = None
    created_before: int | None = None
