"""Sessions as repositories take and give them.

Nobody changes a row. It is not frozen for the sake of those that are made by the page: to make a
frozen one takes nine times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentctl.store.listing import Cursor, Order
from agentctl.store.visibility import Visibility

__all__ = ["Foreign", "SessionQuery", "SessionRow", "SummaryRow"]


@dataclass(slots=True)
class SummaryRow:
    """What a list shows of a session. Times are microseconds."""

    session_id: str
    session_type: str
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


@dataclass(slots=True)
class SessionRow(SummaryRow):
    """A session as it is stored: these are JSON texts."""

    metrics: str
    component_data: str | None
    metadata: str | None
    summary: str | None
    session_state: str | None


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Which sessions to list. `name_prefix` is compared without regard to ASCII case."""

    visibility: Visibility
    session_type: str | None = None
    component_id: str | None = None
    user_id: str | None = None
    name_prefix: str | None = None
    sort_by: Literal["created_at", "updated_at"] = "created_at"
    sort_order: Order = "desc"
    limit: int = 20
    offset: int = 0
    after: Cursor | None = None


@dataclass(frozen=True, slots=True)
class Foreign:
    """A session that a run may not use: it is not visible, or of another type."""

    row: SessionRow
