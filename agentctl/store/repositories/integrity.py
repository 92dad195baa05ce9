"""What `service.doctor` looks for and repairs: a walk over all runs, and changes of single ones.

The walk is by pages, in the order of the ids, so that it takes little memory and goes on where it
was. What it finds may be over when it is looked at again: every change has its condition.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentctl.store.database import Sql, Statement, Steps, unit

__all__ = ["Messages", "Scanned", "count", "delete_without_session", "messages", "repair", "scan"]

_LIVE = "status IN ('PENDING', 'RUNNING')"

_HAS_SESSION = "EXISTS (SELECT 1 FROM sessions WHERE sessions.session_id = runs.session_id)"


@dataclass(frozen=True, slots=True)
class Scanned:
    """A run as the walk sees it. `placed`, `live` and `calls` are 0 or 1.

    Attributes:
        placed: whether its session exists.
        live: whether it has not ended.
        calls: whether it has ended and its messages may hold tool calls.
    """

    run_id: str
    session_id: str
    owner: str | None
    status: str
    placed: int
    live: int
    calls: int


@dataclass(frozen=True, slots=True)
class Messages:
    """What a run that has ended keeps of its talk with the model: JSON texts, or None."""

    messages: str | None
    tools: str | None


_COUNT = Sql("SELECT count(*) FROM runs")

_SCAN = Sql(
    "SELECT run_id, session_id, owner, status,"
    f" CASE WHEN {_HAS_SESSION} THEN 1 ELSE 0 END,"
    f" CASE WHEN {_LIVE} THEN 1 ELSE 0 END,"
    f" CASE WHEN NOT {_LIVE} AND messages LIKE '%\"tool_calls\"%' THEN 1 ELSE 0 END"
    " FROM runs WHERE run_id > :after ORDER BY run_id LIMIT :limit"
)

_MESSAGES = Sql(
    f"SELECT {', '.join(field.name for field in fields(Messages))} FROM runs"
    f" WHERE run_id = :run_id AND NOT ({_LIVE})"
)

_REPAIR = Sql(
    "UPDATE runs SET messages = :messages, tools = :tools"
    f" WHERE run_id = :run_id AND messages = :before AND NOT ({_LIVE}) RETURNING run_id"
)

_COUNT_EVENTS = Sql("SELECT count(*) FROM run_events WHERE run_id = :run_id")

# Its events go with it: the schema holds that.
_DELETE = Sql(
    f"DELETE FROM runs WHERE run_id = :run_id AND NOT {_HAS_SESSION}"
    f" AND (NOT ({_LIVE}) OR coalesce(owner, '') = cast(:dead_owner as text)) RETURNING run_id"
)


@unit
def count() -> Steps[int]:
    """How many runs there are."""
    rows = yield Statement(_COUNT)
    number: int = rows[0][0]
    return number


@unit
def scan(after: str, limit: int) -> Steps[list[Scanned]]:
    """The next runs of the walk behind an id, `""` for the first ones."""
    rows = yield Statement(_SCAN, {"after": after, "limit": limit})
    return [Scanned(*row) for row in rows]


@unit
def messages(run_id: str) -> Steps[Messages | None]:
    """What a run keeps of its talk with the model; None while it is live, or when it is gone."""
    rows = yield Statement(_MESSAGES, {"run_id": run_id})
    return Messages(*rows[0]) if rows else None


@unit
def repair(run_id: str, before: str, after: Messages) -> Steps[bool]:
    """Replace the messages of a run that has ended; False when they are not `before` any more."""
    rows = yield Statement(
        _REPAIR,
        {
            "run_id": run_id,
            "before": before,
            "messages": after.messages,
            "tools": after.tools,
        },
    )
    return bool(rows)


@unit
def delete_without_session(run_id: str, dead_owner: str | None) -> Steps[int | None]:
    """Delete a run that has no session, with its events.

    Args:
        dead_owner: who is known not to work on it any more, if it has not ended.

    Returns:
        How many batches of events went with it; None, and nothing was changed, when it is gone,
        has a session, or somebody else works on it.
    """
    batches = yield Statement(_COUNT_EVENTS, {"run_id": run_id})
    gone = yield Statement(_DELETE, {"run_id": run_id, "dead_owner": dead_owner or ""})
    return batches[0][0] if gone else None
