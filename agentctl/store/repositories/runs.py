"""Runs: appended as rows, changed only by conditional updates, so that an end is written once.

A run that is PENDING has not been claimed: `start` claims it. A cancel request is recorded beside
the state (design.md "Runs"); a run that nobody has claimed ends with it at once.
"""

from __future__ import annotations

from dataclasses import asdict

from agentctl.store.database import Row, Sql, Statement, Steps, Value, unit
from agentctl.store.repositories import sessions
from agentctl.store.repositories.run_reads import (
    IS_LIVE,
    LISTING,
    RUN_COLUMNS,
    RunRowPage,
    get,
    get_for_update,
    get_state,
    list_cancel_requests,
    list_children,
    list_histories,
    list_in_session,
    list_live_in_session,
    list_live_of_worker,
    list_live_owners,
    list_page,
    list_recent_messages,
)
from agentctl.store.repositories.run_rows import NewRun, RunEnd, RunRow, RunState
from agentctl.store.repositories.sessions import parse_counters

__all__ = [
    "LISTING",
    "NewRun",
    "RunEnd",
    "RunRow",
    "RunRowPage",
    "RunState",
    "claim",
    "create",
    "finish",
    "get",
    "get_for_update",
    "get_state",
    "list_cancel_requests",
    "list_children",
    "list_histories",
    "list_in_session",
    "list_live_in_session",
    "list_live_of_worker",
    "list_live_owners",
    "list_page",
    "list_recent_messages",
    "record_work_stopped",
    "request_cancel",
    "store_question",
]

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
    " late_result = :late_result, attempt = attempt + :lost,"
    " cancel_reason = coalesce(cast(:cancel_reason as text), cancel_reason)"
    f" WHERE run_id = :run_id AND attempt = :attempt AND {IS_LIVE} {_CHANGED}"
)

_ENDS = "status = 'PENDING' AND cast(:claimed as bigint) = 0"

_REQUEST_CANCEL = Sql(
    "UPDATE runs SET cancel_requested_at = :now, cancel_requested_by = :actor,"
    " cancel_reason = :reason,"
    f" finished_at = CASE WHEN {_ENDS} THEN cast(:now as bigint) END,"
    f" stopped_at = CASE WHEN {_ENDS} THEN cast(:now as bigint) END,"
    f" status = CASE WHEN {_ENDS} THEN 'CANCELLED' ELSE status END"
    f" WHERE run_id = :run_id AND {IS_LIVE} AND cancel_requested_at IS NULL RETURNING {RUN_COLUMNS}"
)

_WORK_STOPPED = Sql(
    "UPDATE runs SET stopped_at = :at, late_result = late_result | :late_result"
    f" WHERE run_id = :run_id AND attempt = :attempt AND NOT {IS_LIVE} AND stopped_at IS NULL"
    " RETURNING run_id"
)

_LEAVE = Sql(
    "UPDATE runs SET history = :history, messages = :messages"
    f" WHERE run_id = :run_id AND NOT {IS_LIVE} AND history IS NULL AND messages IS NULL"
    " RETURNING session_id, parent_run_id, finished_at"
)


@unit
def create(run: NewRun) -> Steps[int | None]:
    """Store a run as PENDING, its first attempt.

    Returns:
        Its number in the session, from 1; None when there is no such session.
    """
    top = run.parent_run_id is None
    seq = yield from sessions.allocate_seq(
        run.session_id, run.created_at, "PENDING" if top else None, run.session_name
    )
    if seq is None:
        return None
    values = asdict(run) | {"seq": seq, "background": int(run.background)}
    yield Statement(_CREATE, values)
    return seq


@unit
def claim(run_id: str, attempt: int, owner: str, now: int) -> Steps[bool]:
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
    yield from _update_session_status(changed[0], "RUNNING")
    return True


@unit
def finish(end: RunEnd, *, lost: bool = False) -> Steps[bool]:
    """End a run and add what it used to its session.

    Args:
        lost: its worker is taken for dead. The attempt that has ended is no longer the run's, so
            that whatever its worker may still write is refused.

    Returns:
        False, and nothing was changed, when it has already ended, is gone, or the attempt is
        another one. A run becomes CANCELLED only when that has been requested: the schema holds it.
    """
    flags = {"late_result": int(end.late_result), "lost": int(lost)}
    changed = yield Statement(_FINISH, asdict(end) | flags)
    if not changed:
        return False
    session_id, _, parent_run_id = changed[0]
    size = _count_history_bytes(end.history, parent_run_id)
    yield from sessions.add_usage(session_id, parse_counters(end.metrics), size, end.finished_at)
    yield from _update_session_status(changed[0], end.status)
    return True


@unit
def record_work_stopped(run_id: str, attempt: int, at: int, late_result: bool) -> Steps[bool]:
    """Note of a run that has ended that the work itself, which had not stopped, now has.

    Args:
        late_result: whether it came to a result, which was dropped.

    Returns:
        False, and nothing was changed, when it has not ended, was known to have stopped, is gone,
        or the attempt is another one.
    """
    values: dict[str, Value] = {"run_id": run_id, "attempt": attempt, "at": at}
    rows = yield Statement(_WORK_STOPPED, {**values, "late_result": int(late_result)})
    return bool(rows)


@unit
def store_question(run_id: str, history: str | None, messages: str | None) -> Steps[None]:
    """Give a run that ended before it began what it leaves: the question that it was asked.

    Nothing happens when the run has not ended, is gone, or has left anything.

    Args:
        history, messages: as in RunEnd.
    """
    changed = yield Statement(_LEAVE, {"run_id": run_id, "history": history, "messages": messages})
    for session_id, parent_run_id, finished_at in changed:
        size = _count_history_bytes(history, parent_run_id)
        yield from sessions.add_usage(session_id, {}, size, finished_at)


def _count_history_bytes(history: str | None, parent_run_id: str | None) -> int:
    """What a run adds to its session's `chat_history`: only top-level runs are shown there."""
    return len(history.encode()) if history is not None and parent_run_id is None else 0


@unit
def request_cancel(
    run_id: str, now: int, actor: str, reason: str | None, *, claimed: bool = False
) -> Steps[RunRow | None]:
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
        yield from _update_session_status((run.session_id, run.seq, run.parent_run_id), run.status)
    return run


@unit
def _update_session_status(changed: Row, status: str) -> Steps[None]:
    session_id, seq, parent_run_id = changed
    if parent_run_id is None:
        yield from sessions.set_last_status(session_id, seq, status)
