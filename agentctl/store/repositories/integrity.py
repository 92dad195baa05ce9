"""What `service.doctor` looks for and repairs: a walk over all runs, and changes of single ones.

The walk is by pages, in the order of the ids, so that it takes little memory and goes on where it
was. What it finds may be over when it is looked at again: every change has its condition.

What must hold between rows, beyond what the schema holds itself: for `agentctl db check`.

Sessions are walked in pages by id; each page is one state. Nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from agentctl.store.database import Sql, Statement, Steps, single_unit, unit

__all__ = [
    "ScannedRun",
    "SessionsCheck",
    "StoredMessages",
    "Violation",
    "check_sessions",
    "count_runs",
    "count_sessions",
    "delete_orphan",
    "find_violations",
    "get_messages",
    "replace_messages",
    "scan_runs",
]

_LIVE = "status IN ('PENDING', 'RUNNING')"

_HAS_SESSION = "EXISTS (SELECT 1 FROM sessions WHERE sessions.session_id = runs.session_id)"


@dataclass(frozen=True, slots=True)
class ScannedRun:
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
    has_session: int
    live: int
    calls: int


@dataclass(frozen=True, slots=True)
class StoredMessages:
    """What a run that has ended keeps of its talk with the model: JSON texts, or None."""

    messages: str | None
    tools: str | None


_COUNT_RUNS = Sql("SELECT count(*) FROM runs")

_SCAN = Sql(
    "SELECT run_id, session_id, owner, status,"
    f" CASE WHEN {_HAS_SESSION} THEN 1 ELSE 0 END,"
    f" CASE WHEN {_LIVE} THEN 1 ELSE 0 END,"
    f" CASE WHEN NOT {_LIVE} AND messages LIKE '%\"tool_calls\"%' THEN 1 ELSE 0 END"
    " FROM runs WHERE run_id > :after ORDER BY run_id LIMIT :limit"
)

_MESSAGES = Sql(
    f"SELECT {', '.join(field.name for field in fields(StoredMessages))} FROM runs"
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


@single_unit
def count_runs() -> Steps[int]:
    """How many runs there are."""
    rows = yield Statement(_COUNT_RUNS)
    number: int = rows[0][0]
    return number


@single_unit
def scan_runs(after: str, limit: int) -> Steps[list[ScannedRun]]:
    """The next runs of the walk behind an id, `""` for the first ones."""
    rows = yield Statement(_SCAN, {"after": after, "limit": limit})
    return [ScannedRun(*row) for row in rows]


@single_unit
def get_messages(run_id: str) -> Steps[StoredMessages | None]:
    """What a run keeps of its talk with the model; None while it is live, or when it is gone."""
    rows = yield Statement(_MESSAGES, {"run_id": run_id})
    return StoredMessages(*rows[0]) if rows else None


@unit
def replace_messages(run_id: str, before: str, after: StoredMessages) -> Steps[bool]:
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
def delete_orphan(run_id: str, dead_owner: str | None) -> Steps[int | None]:
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


_COUNT_SESSIONS = Sql("SELECT count(*) FROM sessions")

_PAGE = Sql(
    "SELECT page.session_id, page.run_count, page.history_bytes, page.last_status,"
    " count(runs.run_id), coalesce(max(runs.seq), 0),"
    " coalesce(sum(CASE WHEN runs.parent_run_id IS NULL"
    " THEN octet_length(runs.history) END), 0)"
    " FROM (SELECT session_id, run_count, history_bytes, last_status FROM sessions"
    " WHERE session_id > :after ORDER BY session_id LIMIT :limit) AS page"
    " LEFT JOIN runs ON runs.session_id = page.session_id"
    " GROUP BY page.session_id, page.run_count, page.history_bytes, page.last_status"
    " ORDER BY page.session_id"
)

_LAST = Sql(
    "SELECT status FROM runs WHERE session_id = :session_id AND parent_run_id IS NULL"
    " ORDER BY seq DESC LIMIT 1"
)

_VIOLATIONS = {
    "runs without a session": Sql(
        "SELECT run_id FROM runs WHERE NOT EXISTS"
        " (SELECT 1 FROM sessions WHERE sessions.session_id = runs.session_id) LIMIT 3"
    ),
    "events without a run": Sql(
        "SELECT run_id FROM run_events WHERE NOT EXISTS"
        " (SELECT 1 FROM runs WHERE runs.run_id = run_events.run_id) LIMIT 3"
    ),
    "runs whose parent is gone": Sql(
        "SELECT run_id FROM runs WHERE parent_run_id IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM runs AS parent WHERE parent.run_id = runs.parent_run_id) LIMIT 3"
    ),
    "runs that ended at no time": Sql(
        "SELECT run_id FROM runs WHERE finished_at IS NULL AND status NOT IN"
        " ('PENDING', 'RUNNING') LIMIT 3"
    ),
    "runs in no known state": Sql(
        "SELECT run_id FROM runs WHERE status NOT IN"
        " ('PENDING', 'RUNNING', 'COMPLETED', 'ERROR', 'CANCELLED') LIMIT 3"
    ),
}
"""What is wrong with the rows that each statement finds, some of them."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that does not hold, and the ids of some rows that show it."""

    what: str
    ids: list[str]


@dataclass(frozen=True, slots=True)
class SessionsCheck:
    """A page of the walk: how many sessions, the last id, and what is wrong with which."""

    sessions: int
    last: str
    broken: list[tuple[str, str]]


@single_unit
def count_sessions() -> Steps[int]:
    """How many sessions there are."""
    ((number,),) = yield Statement(_COUNT_SESSIONS)
    return int(number)


@unit
def check_sessions(after: str, limit: int) -> Steps[SessionsCheck]:
    """Compare the counters of the next sessions behind an id with their runs."""
    rows = yield Statement(_PAGE, {"after": after, "limit": limit})
    broken = []
    for session_id, run_count, history_bytes, last_status, runs, highest, octets in rows:
        if run_count != runs or run_count < highest:
            broken.append(("run_count is not the number of its runs", session_id))
        if history_bytes != octets:
            broken.append(("history_bytes is not the size of its history", session_id))
        if last_status is not None or highest:
            found = yield Statement(_LAST, {"session_id": session_id})
            if found and found[0][0] != last_status:
                broken.append(("last_status is not that of its last run", session_id))
    return SessionsCheck(len(rows), rows[-1][0] if rows else after, broken)


@unit
def find_violations() -> Steps[list[Violation]]:
    """Rows that belong to nothing, or are in no state that there is. All rows are looked at."""
    found = []
    for what, sql in _VIOLATIONS.items():
        rows = yield Statement(sql)
        if rows:
            found.append(Violation(what, [row[0] for row in rows]))
    return found
