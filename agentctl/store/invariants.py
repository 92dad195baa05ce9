"""What must hold between rows, beyond what the schema holds itself: for `agentctl db check`.

Sessions are walked in pages by id; each page is one state. Nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.store.database import Sql, Statement, Steps, unit

__all__ = ["Broken", "Walked", "count_sessions", "loose_ends", "walk"]

_COUNT = Sql("SELECT count(*) FROM sessions")

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

_LOOSE = {
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
class Broken:
    """Something that does not hold, and the ids of some rows that show it."""

    what: str
    ids: list[str]


@dataclass(frozen=True, slots=True)
class Walked:
    """A page of the walk: how many sessions, the last id, and what is wrong with which."""

    sessions: int
    last: str
    broken: list[tuple[str, str]]


@unit
def count_sessions() -> Steps[int]:
    """How many sessions there are."""
    ((number,),) = yield Statement(_COUNT)
    return int(number)


@unit
def walk(after: str, limit: int) -> Steps[Walked]:
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
    return Walked(len(rows), rows[-1][0] if rows else after, broken)


@unit
def loose_ends() -> Steps[list[Broken]]:
    """Rows that belong to nothing, or are in no state that there is. All rows are looked at."""
    found = []
    for what, sql in _LOOSE.items():
        rows = yield Statement(sql)
        if rows:
            found.append(Broken(what, [row[0] for row in rows]))
    return found
