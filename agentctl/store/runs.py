"""Runs: appended as rows, changed only by conditional updates, so that an end is written once.

A run that is PENDING has not been claimed: `start` claims it. A cancel request is recorded beside
the state (design.md "Runs"); a run that nobody has claimed ends with it at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

from agentctl.store import sessions
from agentctl.store.database import Row, Sql, Statement, Value, Work
from agentctl.store.listing import Filter, Listed, Listing, Slice
from agentctl.store.run_rows import NewRun, RunEnd, RunQuery, RunRow, RunState
from agentctl.store.usage import counted
from agentctl.store.visibility import EVERYONE, OWNER_FILTERS, VISIBLE, Visibility

__all__ = [
    "NewRun",
    "RunEnd",
    "RunList",
    "RunQuery",
    "RunRow",
    "RunState",
    "cancel_requests",
    "children",
    "create",
    "finish",
    "get",
    "histories",
    "live_in_session",
    "of_session",
    "page",
    "recent_messages",
    "request_cancel",
    "start",
    "state",
]


RunList = Listed[RunRow]

_COLUMNS = ", ".join(field.name for field in fields(RunRow))
_STATE = ", ".join(field.name for field in fields(RunState))
_LIVE = "status IN ('PENDING', 'RUNNING')"

_GET = Sql(f"SELECT {_COLUMNS} FROM runs WHERE run_id = :run_id AND {VISIBLE}")
_GET_STATE = Sql(f"SELECT {_STATE} FROM runs WHERE run_id = :run_id AND {VISIBLE}")

_CREATE = Sql(
    "INSERT INTO runs (run_id, session_id, seq, parent_run_id, component_type, component_id,"
    " user_id, status, background, attempt, owner, created_at, late_result, input)"
    " VALUES (:run_id, :session_id, :seq, :parent_run_id, :component_type, :component_id,"
    " :user_id, 'PENDING', :background, 1, :owner, :created_at, 0, :input)"
)

_CHANGED = "RETURNING session_id, seq, parent_run_id"

_START = Sql(
    "UPDATE runs SET status = 'RUNNING', owner = :owner, started_at = :now"
    " WHERE run_id = :run_id AND attempt = :attempt AND status = 'PENDING'"
    f" AND cancel_requested_at IS NULL {_CHANGED}"
)

_FINISH = Sql(
    "UPDATE runs SET status = :status, content = :content, history = :history,"
    " messages = :messages, tools = :tools, metrics = :metrics, error_code = :error_code,"
    " error_detail = :error_detail, finished_at = :finished_at, stopped_at = :stopped_at,"
    " late_result = :late_result"
    f" WHERE run_id = :run_id AND attempt = :attempt AND {_LIVE} {_CHANGED}"
)

_ENDS = "status = 'PENDING' AND cast(:claimed as bigint) = 0"

_REQUEST_CANCEL = Sql(
    "UPDATE runs SET cancel_requested_at = :now, cancel_requested_by = :actor,"
    " cancel_reason = :reason,"
    f" finished_at = CASE WHEN {_ENDS} THEN cast(:now as bigint) END,"
    f" stopped_at = CASE WHEN {_ENDS} THEN cast(:now as bigint) END,"
    f" status = CASE WHEN {_ENDS} THEN 'CANCELLED' ELSE status END"
    f" WHERE run_id = :run_id AND {_LIVE} AND cancel_requested_at IS NULL RETURNING {_COLUMNS}"
)

_OF_SESSION = Sql(
    f"SELECT {_COLUMNS} FROM runs WHERE session_id = :session_id AND seq > :after_seq"
    " ORDER BY seq LIMIT :limit"
)

_HISTORIES = Sql(
    "SELECT history FROM runs WHERE session_id = :session_id AND parent_run_id IS NULL"
    " AND history IS NOT NULL ORDER BY seq"
)

_RECENT_MESSAGES = Sql(
    "SELECT messages FROM runs WHERE session_id = :session_id AND parent_run_id IS NULL"
    " AND finished_at IS NOT NULL AND messages IS NOT NULL ORDER BY seq DESC LIMIT :limit"
)

_LIVE_IN_SESSION = Sql(
    f"SELECT run_id FROM runs WHERE session_id = :session_id AND {_LIVE} ORDER BY seq"
)

_CANCEL_REQUESTS = Sql(
    f"SELECT {_STATE} FROM runs WHERE owner = :owner AND {_LIVE}"
    " AND cancel_requested_at IS NOT NULL ORDER BY cancel_requested_at"
)

_PARENTS = 20
"""Parents in one statement of `children`; a last group that is smaller is filled with null."""

_CHILDREN = Sql(
    "SELECT parent_run_id, run_id FROM runs WHERE parent_run_id IN"
    f" ({', '.join(f':parent_{number}' for number in range(_PARENTS))})"
    " ORDER BY parent_run_id, seq"
)

_NO_LIMIT = 2**63 - 1

LISTING = Listing(
    table="runs",
    columns=_COLUMNS,
    id="run_id",
    sorts=("created_at",),
    free={
        name: Filter(name, f"= :{name}")
        for name in ("session_id", "user_id", "component_id", "status", "component_type")
    },
    choices=(OWNER_FILTERS,),
    leads=("session_id", "user_id", "component_id", "status", "component_type"),
    promoted=("status",),
)


def create(run: NewRun) -> Work[int | None]:
    """Store a run as PENDING, its first attempt.

    Returns:
        Its number in the session, from 1; None when there is no such session.
    """
    top = run.parent_run_id is None
    seq = yield from sessions.take_seq(
        run.session_id, run.created_at, "PENDING" if top else None, run.session_name
    )
    if seq is None:
        return None
    values = asdict(run) | {"seq": seq, "background": int(run.background)}
    yield Statement(_CREATE, values)
    return seq


def start(run_id: str, attempt: int, owner: str, now: int) -> Work[bool]:
    """Claim a run: PENDING becomes RUNNING.

    Returns:
        False, and nothing was changed, when it is not PENDING any more, its cancel has been
        requested, or the attempt is another one.
    """
    changed = yield Statement(
        _START, {"run_id": run_id, "attempt": attempt, "owner": owner, "now": now}
    )
    if not changed:
        return False
    yield from _note_status(changed[0], "RUNNING")
    return True


def finish(end: RunEnd) -> Work[bool]:
    """End a run and add what it used to its session.

    Returns:
        False, and nothing was changed, when it has already ended, is gone, or the attempt is
        another one. A run becomes CANCELLED only when that has been requested: the schema holds it.
    """
    values = asdict(end) | {"late_result": int(end.late_result)}
    changed = yield Statement(_FINISH, values)
    if not changed:
        return False
    session_id, _, parent_run_id = changed[0]
    shown = end.history is not None and parent_run_id is None
    size = len((end.history or "").encode()) if shown else 0
    yield from sessions.add_usage(session_id, counted(end.metrics), size, end.finished_at)
    yield from _note_status(changed[0], end.status)
    return True


def request_cancel(
    run_id: str, now: int, actor: str, reason: str | None, *, claimed: bool = False
) -> Work[RunRow | None]:
    """Record that a run is to stop. One that is PENDING ends as CANCELLED at once.

    Args:
        claimed: the caller works on the run and writes its end itself, even if it is PENDING.

    Returns:
        The run as this request has left it; None when the request changed nothing, because the
        run has ended, has been asked to stop before, or does not exist: `state` tells which.
    """
    values: dict[str, Value] = {"run_id": run_id, "now": now, "actor": actor, "reason": reason}
    rows = yield Statement(_REQUEST_CANCEL, {**values, "claimed": int(claimed)})
    if not rows:
        return None
    run = RunRow(*rows[0])
    if run.status == "CANCELLED":
        yield from _note_status((run.session_id, run.seq, run.parent_run_id), run.status)
    return run


def _note_status(changed: Row, status: str) -> Work[None]:
    session_id, seq, parent_run_id = changed
    if parent_run_id is None:
        yield from sessions.set_last_status(session_id, seq, status)


def get(run_id: str, visibility: Visibility) -> Work[RunRow | None]:
    """The run, or None when there is none that is visible."""
    rows = yield Statement(_GET, {"run_id": run_id, **visibility.parameters()})
    return RunRow(*rows[0]) if rows else None


def state(run_id: str, visibility: Visibility = EVERYONE) -> Work[RunState | None]:
    """Where the run stands, or None when there is none that is visible."""
    rows = yield Statement(_GET_STATE, {"run_id": run_id, **visibility.parameters()})
    return RunState(*rows[0]) if rows else None


def page(query: RunQuery) -> Work[RunList]:
    """One page of the runs that are visible, and how many there are."""
    filters = query.visibility.filters()
    for name in LISTING.free:
        value = getattr(query, name)
        if value is not None:
            filters[name] = value
    part = Slice("created_at", query.sort_order, query.limit, query.offset, query.after)
    # Few runs are live at a time, whatever else is asked for.
    promote = "status" if query.status in ("PENDING", "RUNNING") else ""
    return (yield from LISTING.page(filters, part, RunRow, promote))


def children(run_ids: Sequence[str]) -> Work[dict[str, list[str]]]:
    """For each of some runs, the ids of its children in order; every id given has an entry."""
    found: dict[str, list[str]] = {run_id: [] for run_id in run_ids}
    for first in range(0, len(run_ids), _PARENTS):
        group = run_ids[first : first + _PARENTS]
        parameters: dict[str, Value] = {f"parent_{n}": None for n in range(_PARENTS)}
        parameters |= {f"parent_{n}": run_id for n, run_id in enumerate(group)}
        rows = yield Statement(_CHILDREN, parameters)
        for parent_run_id, run_id in rows:
            found[parent_run_id].append(run_id)
    return found


def of_session(
    session_id: str, *, limit: int | None = None, after_seq: int | None = None
) -> Work[list[RunRow]]:
    """The runs of a session, members' runs included, oldest first."""
    rows = yield Statement(
        _OF_SESSION,
        {
            "session_id": session_id,
            "after_seq": after_seq or 0,
            "limit": _NO_LIMIT if limit is None else limit,
        },
    )
    return [RunRow(*row) for row in rows]


def histories(session_id: str) -> Work[list[str]]:
    """What the session's top-level runs show in `chat_history`, in order: JSON arrays."""
    rows = yield Statement(_HISTORIES, {"session_id": session_id})
    return [history for (history,) in rows]


def recent_messages(session_id: str, limit: int) -> Work[list[str]]:
    """The messages of the last `limit` top-level runs that have ended, oldest first: JSON arrays.

    What it costs does not depend on the number of runs.
    """
    rows = yield Statement(_RECENT_MESSAGES, {"session_id": session_id, "limit": limit})
    return [messages for (messages,) in reversed(rows)]


def live_in_session(session_id: str) -> Work[list[str]]:
    """Ids of the session's runs that have not ended, oldest first."""
    rows = yield Statement(_LIVE_IN_SESSION, {"session_id": session_id})
    return [run_id for (run_id,) in rows]


def cancel_requests(owner: str) -> Work[list[RunState]]:
    """The runs that a worker has to stop: claimed by it, asked to stop, not ended."""
    rows = yield Statement(_CANCEL_REQUESTS, {"owner": owner})
    return [RunState(*row) for row in rows]
