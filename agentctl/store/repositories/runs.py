"""Runs: rows that are appended, and changed only by conditional updates.

So the final status of a run is stored once. A PENDING run is not claimed yet; `claim` makes it
RUNNING. Most runs are created as RUNNING. A cancel request is stored separately from the status
(docs/contract.md "Cancel"); `runs/desk/end.py` ends a run that nothing executes.

A transaction that ends a run lets the next one of its session begin, if one waits in the queue.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from operator import attrgetter
from typing import NamedTuple

from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import NewRun, RunEnd, RunPause, RunRow
from agentctl.records.text import new_id
from agentctl.store.database import Row, Sql, Statement, Steps, Value, Work, build_insert, unit
from agentctl.store.repositories import queue, sessions, usage
from agentctl.store.repositories.sessions import NO_COST, parse_usage
from agentctl.store.states import IS_OPEN, RUN, change

_STORED = tuple(field.name for field in fields(RunRow))
_get_stored = attrgetter(*_STORED)

_NEW = tuple(field.name for field in fields(RunSpec) if field.name in _STORED)
_get_new = attrgetter(*_NEW)

_CREATED = (
    *_NEW, "seq", "status", "attempt", "owner", "created_at", "started_at", "late_result",
    "queued_at", "queue_turn", "origin_run_id", "origin_kind", "origin_at",
)  # fmt: skip
"""The columns of a new row that have a value: its specification and its state."""

_CREATE = change(RUN, "start", "accept", "enqueue")(build_insert("runs", _CREATED))

# Its usage belongs to another system.
_RESTORE = change(RUN, "import")(build_insert("runs", (*_STORED, "counted")))

_END = tuple(field.name for field in fields(RunEnd))
_get_end = attrgetter(*_END)

_CHANGED = "RETURNING session_id, seq, parent_run_id"


def _not_before(value: str, floor: str) -> str:
    """Return SQL for the later of two times; NULL if the value is.

    A clock may go back while a run executes, and the process that ends a run may be on another
    machine than the one that started it.
    """
    time = f"cast({value} as bigint)"
    return f"CASE WHEN {time} < {floor} THEN {floor} ELSE {time} END"


_LATEST = (
    "CASE WHEN cancel_requested_at > coalesce(started_at, created_at) THEN cancel_requested_at"
    " ELSE coalesce(started_at, created_at) END"
)
"""The latest known time of a live run."""

_START = change(RUN, "begin")(
    "UPDATE runs SET status = 'RUNNING', owner = :owner,"
    f" started_at = {_not_before(':now', 'created_at')}"
    f" WHERE run_id = :run_id AND attempt = :attempt AND {{where}} {_CHANGED}"
)

_NOT_REPLACED = (
    "run_id", "attempt", "finished_at", "stopped_at", "cancel_reason", "model_calls",
    "first_token_at",
)  # fmt: skip
"""The fields of `RunEnd` that are no column, or that the statement compares with the row."""

_REPLACED = ", ".join(f"{name} = :{name}" for name in _END if name not in _NOT_REPLACED)

_FINISH = change(RUN, "end", "end lost", "end waiting")(
    f"UPDATE runs SET {_REPLACED},"
    f" finished_at = {_not_before(':finished_at', _LATEST)},"
    f" stopped_at = {_not_before(':stopped_at', _LATEST)},"
    " attempt = attempt + :lost, queue_turn = NULL, counted = 1,"
    " cancel_reason = coalesce(cast(:cancel_reason as text), cancel_reason)"
    f" WHERE run_id = :run_id AND attempt = :attempt AND {{where}} {_CHANGED}, messages_sent"
)

_REQUEST_CANCEL = change(RUN, "request cancel")(
    "UPDATE runs SET"
    f" cancel_requested_at = {_not_before(':now', 'coalesce(started_at, created_at)')},"
    " cancel_requested_by = :actor, cancel_reason = :reason"
    " WHERE run_id = :run_id AND {where} AND cancel_requested_at IS NULL"
    " AND (status = 'RUNNING' OR cast(:claimed as bigint) = 1)"
    " RETURNING run_id"
)

_WORK_STOPPED = Sql(
    f"UPDATE runs SET stopped_at = {_not_before(':at', 'finished_at')},"
    " late_result = late_result | :late_result, holding = NULL"
    f" WHERE run_id = :run_id AND attempt = :attempt AND NOT {IS_OPEN} AND stopped_at IS NULL"
    " RETURNING run_id"
)

_SET_HOLDING = Sql(
    "UPDATE runs SET holding = :holding"
    f" WHERE run_id = :run_id AND attempt = :attempt AND NOT {IS_OPEN} AND stopped_at IS NULL"
)

_WORKER_GONE = Sql(
    "UPDATE runs SET holding = NULL,"
    " stopped_at = CASE WHEN cast(:exited as bigint) = 1"
    f" THEN {_not_before(':at', 'finished_at')} END"
    " WHERE owner = :owner AND holding IS NOT NULL"
)

_PAUSE = change(RUN, "pause")(
    "UPDATE runs SET status = :status, owner = NULL,"
    f" paused_at = {_not_before(':paused_at', 'coalesce(started_at, created_at)')},"
    " content = :content, messages = :messages, tools = :tools, metrics = :metrics,"
    " model_metrics = :model_metrics, spans = :spans, requests = :requests, leg_effects = 0,"
    " attempt = attempt + CASE WHEN cast(:status as text) = 'PENDING' THEN 1 ELSE 0 END"
    f" WHERE run_id = :run_id AND attempt = :attempt AND {{where}} {_CHANGED}"
)

_RELEASE = change(RUN, "release")(
    "UPDATE runs SET status = 'PENDING', attempt = attempt + 1, owner = NULL"
    f" WHERE run_id = :run_id AND {{where}} {_CHANGED}"
)

_SET_VERSION = (
    "version = coalesce(cast(:version as text), version), version_changes = CASE"
    " WHEN cast(:version_change as text) IS NULL THEN version_changes ELSE"
    " coalesce(substr(version_changes, 1, length(version_changes) - 1) || ',', '[')"
    " || cast(:version_change as text) || ']' END"
)

_ADD_FILE = Sql(
    "UPDATE runs SET files = coalesce(substr(files, 1, length(files) - 1) || ',', '[')"
    " || cast(:file as text) || ']' WHERE run_id = :run_id"
)

_HOLD = change(RUN, "hold")(
    "UPDATE runs SET status = 'PAUSED', queue_turn = NULL,"
    f" paused_at = {_not_before(':now', 'coalesce(started_at, created_at)')}"
    f" WHERE run_id = :run_id AND {{where}} {_CHANGED}"
)

_CLAIM_LEG = change(RUN, "claim")(
    "UPDATE runs SET status = 'RUNNING', owner = :owner, leg_effects = 0, queue_turn = NULL,"
    f" {_SET_VERSION},"
    f" started_at = coalesce(started_at, {_not_before(':now', 'created_at')})"
    f" WHERE run_id = :run_id AND {{where}} {_CHANGED}"
)

_CLAIM_MEMBER = change(RUN, "claim member")(
    "UPDATE runs SET status = 'RUNNING', owner = :owner, attempt = attempt + 1,"
    f" {_SET_VERSION} WHERE run_id = :run_id AND {{where}} {_CHANGED}"
)

_RETURN = change(RUN, "return")(
    "UPDATE runs SET status = :status, attempt = attempt + 1, owner = NULL,"
    " queue_turn = NULL"
    f" WHERE run_id = :run_id AND attempt = :attempt AND {{where}} {_CHANGED}"
)

_KEEP_EFFECTS = Sql("UPDATE runs SET leg_effects = 1 WHERE run_id = :run_id")

_MARK_EFFECTS = Sql(
    "UPDATE runs SET leg_effects = 1 WHERE run_id = :run_id AND attempt = :attempt"
    " AND status = 'RUNNING' RETURNING run_id"
)


class FinishedRun(NamedTuple):
    """The stored end of a run."""

    session_id: str

    is_root: bool
    """False for the run of a member, and for background work."""

    has_messages: bool
    """True if messages were sent to it."""

    advanced: bool = False
    """True if another run of its session may begin now."""


def add_file(run_id: str, file: str) -> Work[None]:
    """Add the JSON record of a file that the run has saved; the row is locked."""
    return _ADD_FILE.execute(run_id=run_id, file=file)


@unit
def create(run: NewRun, seq: int | None = None) -> Steps[int | None]:
    """Store a run as PENDING or RUNNING, with attempt 1.

    Args:
        seq: its number in the session, if the session was created with it; None to allocate it.

    Returns:
        Its number in the session, from 1; None if the session does not exist.
    """
    spec = run.spec
    at = run.created_at
    if seq is None:
        status = get_first_status(spec, is_queued=run.queue_turn is not None)
        last_status = status if spec.parent_run_id is None else None
        seq = yield from sessions.allocate_seq(spec.session_id, at, last_status, run.session_name)
    if seq is None:
        return None
    yield Statement(_CREATE, {**_build_new_values(run), "seq": seq})
    return seq


def get_first_status(spec: RunSpec, *, is_queued: bool) -> str:
    """Return the status of a new run; PENDING if it waits for a claim."""
    return "PENDING" if is_queued or spec.background else "RUNNING"


def _build_new_values(run: NewRun) -> dict[str, Value]:
    """Return the values of `_CREATED`, without `seq`."""
    spec = run.spec
    at = run.created_at
    origin = spec.origin

    status = get_first_status(spec, is_queued=run.queue_turn is not None)
    values = dict(zip(_NEW, _get_new(spec), strict=True)) | {
        "background": int(spec.background),
        "status": status,
        "attempt": 1,
        "owner": run.owner,
        "created_at": at,
        "started_at": at if status == "RUNNING" else None,
        "late_result": 0,
        "queued_at": None if run.queue_turn is None else at,
        "queue_turn": run.queue_turn,
        "origin_run_id": None,
        "origin_kind": None,
        "origin_at": None,
    }

    if origin is not None:
        values |= {
            "origin_run_id": origin.run_id,
            "origin_kind": origin.kind,
            "origin_at": origin.at,
        }

    if spec.parent_run_id is not None:
        # The objects of the request are read from the row of its root run only.
        values |= {"metadata": None, "session_state": None}

    return values


@unit
def restore(run: RunRow, at: int, *, counted: bool) -> Steps[None]:
    """Store a run that has ended elsewhere as the newest run of its session, which exists.

    Args:
        run: the run; it gets another `seq`, and an owner that no other row has had
            (`sessions.get_identity`).
        at: the time of the change of the session, in microseconds UTC.
        counted: True if the tokens in the session include the tokens of the run.
    """
    last_status = run.status if run.parent_run_id is None else None
    seq = yield from sessions.allocate_seq(run.session_id, at, last_status)

    values = dict(zip(_STORED, _get_stored(run), strict=True))
    values |= {"seq": seq, "owner": f"import {new_id()}"}
    yield Statement(_RESTORE, {**values, "counted": 1})

    counters: dict[str, int] = {}
    cost = NO_COST
    if not counted:
        counters, cost = parse_usage(run.metrics)
    size = _count_history_bytes(run.history, run.parent_run_id)
    yield from sessions.add_usage(run.session_id, counters, size, at, cost=cost)


def claim(run_id: str, attempt: int, owner: str, now: int) -> Work[bool]:
    """Claim a run: change its status from PENDING to RUNNING.

    Returns:
        False, without a change, if the run is not PENDING, its cancel has been requested, or it has
        another attempt.
    """
    return _change_status(
        _START, status="RUNNING", run_id=run_id, attempt=attempt, owner=owner, now=now
    )


def pause(values: RunPause) -> Work[bool]:
    """Store the pause of a running run: it has no owner afterwards.

    Returns:
        False, without a change, if the run does not execute this attempt, or its cancel has been
        requested.
    """
    return _change_status(_PAUSE, **asdict(values))


def release(run_id: str) -> Work[bool]:
    """Make a paused root run PENDING, so that any process may claim and continue it."""
    return _change_status(_RELEASE, status="PENDING", run_id=run_id)


def hold(run_id: str, now: int) -> Work[bool]:
    """Pause a root run that any server may claim, before its next leg.

    Returns:
        False, without a change, if it cannot be claimed.
    """
    return _change_status(_HOLD, status="PAUSED", run_id=run_id, now=now)


class NewVersion(NamedTuple):
    """The version with which a run continues; None for the stored version."""

    version: str | None

    version_change: str | None = None
    """JSON of `records.runs.VersionChange`, None if the version is the same."""


def claim_leg(run_id: str, owner: str, now: int, new_version: NewVersion) -> Work[bool]:
    """Claim a root run that any server may claim; `started_at` keeps its first value.

    Returns:
        False, without a change, if another process was first, or a cancel has been requested.
    """
    values: dict[str, Value] = {"run_id": run_id, "owner": owner, "now": now}
    return _change_status(_CLAIM_LEG, status="RUNNING", **values, **new_version._asdict())


def claim_member(run_id: str, owner: str, new_version: NewVersion) -> Work[bool]:
    """Claim the paused run of a member for the leg of its parent, with a new attempt."""
    values: dict[str, Value] = {"run_id": run_id, "owner": owner}
    return _change_status(_CLAIM_MEMBER, status="RUNNING", **values, **new_version._asdict())


def return_leg(run_id: str, attempt: int, status: str) -> Work[bool]:
    """Return the run of a dead worker to PENDING or PAUSED, with a new attempt and no owner."""
    return _change_status(_RETURN, run_id=run_id, attempt=attempt, status=status)


def mark_effects(run_id: str, attempt: int) -> Work[bool]:
    """Store that the leg of a run has begun a call that needs no approval."""
    return _MARK_EFFECTS.has_rows(run_id=run_id, attempt=attempt)


def keep_effects(run_id: str) -> Work[None]:
    """Store that a lost leg had effects: the run cannot continue from its checkpoint."""
    return _KEEP_EFFECTS.execute(run_id=run_id)


@unit
def _change_status(sql: Sql, *, status: str, **values: Value) -> Steps[bool]:
    """Change the status of a run, and of its session if it is the newest top-level run in it.

    Returns:
        False, without a change, if no row meets the condition of the statement.
    """
    changed_rows = yield Statement(sql, {**values, "status": status})
    if not changed_rows:
        return False
    yield from _update_session_status(changed_rows[0], status)
    return True


@unit
def finish(end: RunEnd, *, lost: bool = False) -> Steps[FinishedRun | None]:
    """Store the end of a run, and add its usage to its session.

    Args:
        lost: True if its worker is considered dead. The run gets a new attempt number, so that a
            later write of that worker is refused.

    Returns:
        None, without a change, if the run has already ended, does not exist, or has another
        attempt. A run becomes CANCELLED only after a cancel request: the schema enforces that.
    """
    values = dict(zip(_END, _get_end(end), strict=True))
    values |= {"late_result": int(end.late_result), "lost": int(lost)}
    changed_rows = yield Statement(_FINISH, values)
    if not changed_rows:
        return None

    session_id, seq, parent_run_id, messages_sent = changed_rows[0]
    is_root = parent_run_id is None

    yield from usage.append(end.run_id, end.first_token_at, end.model_calls)
    size = _count_history_bytes(end.history, parent_run_id)
    counters, cost = parse_usage(end.metrics)
    has_queue = yield from sessions.add_usage(
        session_id,
        counters,
        size,
        end.finished_at,
        last=(seq, end.status) if is_root else None,
        cost=cost,
    )

    advanced = False
    if is_root and has_queue:
        advanced = yield from queue.advance(session_id, end.finished_at)
    return FinishedRun(session_id, is_root, messages_sent > 0, advanced)


def record_work_stopped(run_id: str, attempt: int, at: int, late_result: bool) -> Work[bool]:
    """Store that the work of an ended run has stopped.

    Args:
        late_result: True if the work had a result, which was dropped.

    Returns:
        False, without a change, if the run has not ended, was known to have stopped, does not
        exist, or has another attempt.
    """
    values: dict[str, Value] = {"run_id": run_id, "attempt": attempt, "at": at}
    return _WORK_STOPPED.has_rows(**values, late_result=int(late_result))


def set_holding(run_id: str, attempt: int, holding: str) -> Work[None]:
    """Replace the names of the work that continues after the end of a run.

    Nothing is changed if the run has not ended, is known to have stopped, does not exist, or has
    another attempt.
    """
    values: dict[str, Value] = {"run_id": run_id, "attempt": attempt, "holding": holding}
    return _SET_HOLDING.execute(**values)


def record_worker_gone(owner: str, at: int, *, exited: bool) -> Work[None]:
    """Store that the work of the ended runs of a dead worker has stopped, or may have.

    Args:
        exited: True if its process does not exist any more, so that its threads have stopped.
            False if that is not known.
    """
    return _WORKER_GONE.execute(owner=owner, at=at, exited=int(exited))


def _count_history_bytes(history: str | None, parent_run_id: str | None) -> int:
    """Return the bytes that a run adds to the history of its session; members add none."""
    if history is None or parent_run_id is not None:
        return 0
    return len(history.encode())


def request_cancel(
    run_id: str, now: int, actor: str, reason: str | None, *, claimed: bool = False
) -> Work[bool]:
    """Store a cancel request. The worker of the run ends it.

    Args:
        now: the time of the request, in microseconds UTC.
        claimed: True if the caller stores the end in the same transaction, or executes the run.

    Returns:
        False, without a change, if the run has ended, its cancel was requested before, nothing
        executes it, or it does not exist; `get_state` shows which.
    """
    values: dict[str, Value] = {"run_id": run_id, "now": now, "actor": actor, "reason": reason}
    return _REQUEST_CANCEL.has_rows(**values, claimed=int(claimed))


@unit
def _update_session_status(changed_row: Row, status: str) -> Steps[None]:
    session_id, seq, parent_run_id = changed_row
    if parent_run_id is None:
        yield from sessions.set_last_status(session_id, seq, status)
