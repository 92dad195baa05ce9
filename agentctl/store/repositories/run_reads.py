"""Reads of runs: by id, of a session and of a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from typing import NamedTuple

from agentctl.records.runs import TEXT_COLUMNS, LastRunState, RunRow, RunState, StoredHistory, Turn
from agentctl.store.database import Sql, Statement, Steps, Work, single_unit, unit
from agentctl.store.listing import ID_GROUP, Order, as_columns, read_by_ids
from agentctl.store.states import HAS_CANCEL_REQUEST, IS_LIVE
from agentctl.store.visibility import EVERYONE, IS_VISIBLE, Visibility

RUN_COLUMNS = ", ".join(field.name for field in fields(RunRow))
"""The columns of `RunRow`, in its order."""

_SUMMARY = {**dict.fromkeys({*TEXT_COLUMNS} - {"spans"}, "NULL"), "input": "substr(input, 1, 201)"}

SUMMARY_COLUMNS = ", ".join(_SUMMARY.get(field.name, field.name) for field in fields(RunRow))
"""The columns of `RunRow` without large texts, and with the beginning of the input."""

STATE_COLUMNS = ", ".join(field.name for field in fields(RunState))
"""The columns of `RunState`, in its order."""

_GET = Sql(f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = :run_id AND {IS_VISIBLE}")
_GET_SUMMARY = Sql(f"SELECT {SUMMARY_COLUMNS} FROM runs WHERE run_id = :run_id AND {IS_VISIBLE}")
_HOLD = Sql(f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = :run_id FOR UPDATE")
_GET_ALONE = Sql(
    f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = :run_id AND {IS_VISIBLE}"
    " AND finished_at IS NOT NULL AND paused_at IS NULL"
    " AND coalesce(octet_length(history), 0) + coalesce(octet_length(messages), 0)"
    " + coalesce(octet_length(output), 0) <= cast(:maximum as bigint)"
    " AND NOT EXISTS (SELECT 1 FROM runs AS children WHERE children.parent_run_id = :run_id)"
)
_GET_STATE = Sql(f"SELECT {STATE_COLUMNS} FROM runs WHERE run_id = :run_id AND {IS_VISIBLE}")

_SIZE = Sql(
    "SELECT coalesce(octet_length(history), 0) + coalesce(octet_length(messages), 0)"
    " + coalesce(octet_length(output), 0) FROM runs WHERE run_id = :run_id"
)

_ALL_SEQS = 2**62

_OF_SESSION = {
    (summary, top_level, order): Sql(
        f"SELECT {SUMMARY_COLUMNS if summary else RUN_COLUMNS} FROM runs"
        " WHERE session_id = :session_id AND seq > :after_seq AND seq < :before_seq"
        f"{' AND parent_run_id IS NULL' if top_level else ''} ORDER BY seq {order} LIMIT :limit"
    )
    for summary, top_level, order in product((False, True), (False, True), ("asc", "desc"))
}

_HISTORIES = Sql(
    "SELECT seq, substr(utf8(history), 2, length(utf8(history)) - 2) FROM runs"
    " WHERE session_id = :session_id AND seq > cast(:after_seq as bigint)"
    " AND parent_run_id IS NULL AND history IS NOT NULL ORDER BY seq"
)


_RECENT = Sql(
    # The rows that are not returned are not read: only the sizes of their texts are. A run that was
    # retried is not among them: the retry takes its place when it has ended. The native messages of
    # a fork begin after those of its origin.
    "SELECT run_id, seq, error_code, messages,"
    " CASE WHEN native_kind IN (:native_kind, :former_kind)"
    " AND origin_kind IS NULL THEN native_history END"
    " FROM runs WHERE session_id = :session_id AND seq IN (SELECT seq FROM ("
    "SELECT seq, size, sum(size) OVER (ORDER BY seq DESC) AS total FROM ("
    "SELECT seq, octet_length(messages)"
    " + CASE WHEN native_kind IN (:native_kind, :former_kind)"
    " THEN coalesce(octet_length(native_history), 0) ELSE 0 END AS size FROM runs"
    " WHERE session_id = :session_id AND parent_run_id IS NULL AND seq > :after_seq"
    " AND seq < :before_seq AND finished_at IS NOT NULL AND messages IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM runs AS later WHERE later.origin_run_id = runs.run_id"
    " AND later.origin_kind = 'retry' AND later.messages IS NOT NULL"
    " AND later.finished_at IS NOT NULL) ORDER BY seq DESC LIMIT :limit"
    ") AS recent) AS sized WHERE total <= cast(:maximum AS bigint) OR total = size)"
    " ORDER BY seq"
)

_MESSAGES = Sql(
    "SELECT seq, messages FROM runs WHERE session_id = :session_id AND seq >= :first"
    " AND seq <= :last AND parent_run_id IS NULL AND messages IS NOT NULL ORDER BY seq"
)

_LOCK_STATE = Sql(f"SELECT {STATE_COLUMNS} FROM runs WHERE run_id = :run_id FOR UPDATE")

_OPEN_IN_SESSION = Sql(
    "SELECT seq, run_id FROM runs"
    f" WHERE session_id = :session_id AND {IS_LIVE} AND purpose IS NULL"
    " UNION ALL SELECT seq, run_id FROM runs WHERE session_id = :session_id AND status = 'PAUSED'"
)

_PAUSED_CHILDREN = Sql(
    "SELECT run_id FROM runs WHERE parent_run_id = :run_id AND status = 'PAUSED' ORDER BY seq"
)

_LEG_EFFECTS = Sql("SELECT leg_effects FROM runs WHERE run_id = :run_id")

_BACKGROUND_WORK = Sql(
    f"SELECT run_id FROM runs WHERE session_id = :session_id AND {IS_LIVE} AND purpose = :purpose"
    " ORDER BY seq"
)

_TURNS = Sql(
    "SELECT run_id, seq, input, content FROM runs WHERE session_id = :session_id"
    " AND parent_run_id IS NULL AND finished_at IS NOT NULL AND seq > :after_seq"
    " AND seq < coalesce((SELECT min(seq) FROM runs WHERE session_id = :session_id"
    " AND parent_run_id IS NULL AND finished_at IS NULL AND seq > :after_seq), seq + 1)"
    " ORDER BY seq LIMIT :limit"
)

_STATE_OF_RUN = ", ".join(f"runs.{field.name}" for field in fields(RunState))

# One statement: on SQLite a process with live runs makes it some fifty times a second.
_WORKER_REQUESTS = Sql(
    f"SELECT {STATE_COLUMNS} FROM runs WHERE owner = :owner AND {HAS_CANCEL_REQUEST}"
    f" UNION ALL SELECT {_STATE_OF_RUN} FROM run_messages"
    " JOIN runs ON runs.run_id = run_messages.run_id"
    f" WHERE run_messages.status = 'waiting' AND runs.owner = :owner AND runs.{IS_LIVE}"
    " ORDER BY cancel_requested_at"
)

_CANCELLED_WITHOUT_OWNER = Sql(
    f"SELECT run_id FROM runs WHERE owner IS NULL AND {HAS_CANCEL_REQUEST}"
    " UNION ALL SELECT run_id FROM runs WHERE status = 'PAUSED'"
    " AND cancel_requested_at IS NOT NULL LIMIT 100"
)

_LIVE_OWNERS = Sql(f"SELECT DISTINCT owner FROM runs WHERE {IS_LIVE}")

_LIVE_BY_OWNER = Sql(f"SELECT owner, count(*) FROM runs WHERE {IS_LIVE} GROUP BY owner")

_OWNERS_AT_WORK = Sql(
    f"SELECT owner FROM runs WHERE {IS_LIVE} UNION SELECT owner FROM runs WHERE holding IS NOT NULL"
)

# A child is created after its parent, in the same session.
_CHILDREN_FIRST = "ORDER BY session_id, seq DESC"

_LIVE_OF = Sql(
    f"SELECT {RUN_COLUMNS} FROM runs WHERE owner = :owner AND {IS_LIVE} {_CHILDREN_FIRST}"
)

# A run that continues after a pause, or waits in the queue, waits for any process: it has no owner.
_LIVE_WITHOUT_OWNER = Sql(
    f"SELECT {RUN_COLUMNS} FROM runs WHERE owner IS NULL AND {IS_LIVE} AND attempt = 1"
    f" AND queue_turn IS NULL {_CHILDREN_FIRST}"
)
_LIVE_OR_WAITING = Sql(
    f"SELECT {RUN_COLUMNS} FROM runs WHERE owner IS NULL AND {IS_LIVE} {_CHILDREN_FIRST}"
)

_CHILDREN_USAGE = Sql(
    f"SELECT parent_run_id, run_id, metrics FROM runs WHERE parent_run_id IN ({ID_GROUP})"
)

_REQUESTS = Sql("SELECT requests FROM runs WHERE run_id = :run_id")

_CAUSES = Sql("SELECT causes FROM runs WHERE run_id = :run_id")

_CHILDREN_CAUSES = Sql(
    "SELECT run_id, component_type, component_id, causes FROM runs"
    f" WHERE parent_run_id IN ({ID_GROUP}) ORDER BY parent_run_id, seq"
)

_CAUSES_OF = Sql(
    "SELECT run_id, run_id, component_type, component_id, causes FROM runs"
    f" WHERE run_id IN ({ID_GROUP})"
)

# One child of each run: a member that failed a thousand times costs no more than one that failed
# once.
_LAST_FAILED_CHILDREN = Sql(
    "SELECT parent_run_id, run_id, component_type, component_id, causes FROM runs"
    f" WHERE parent_run_id IN ({ID_GROUP}) AND status = 'ERROR' AND seq = (SELECT max(seq)"
    " FROM runs AS later WHERE later.parent_run_id = runs.parent_run_id AND later.status = 'ERROR')"
)

_CHILD_ROWS = Sql(
    f"SELECT {SUMMARY_COLUMNS.replace(_SUMMARY['input'], 'input')} FROM runs"
    f" WHERE parent_run_id IN ({ID_GROUP})"
    " ORDER BY parent_run_id, seq"
)

_CHILDREN = Sql(
    "SELECT parent_run_id, run_id FROM runs WHERE parent_run_id IN"
    f" ({ID_GROUP})"
    " ORDER BY parent_run_id, seq"
)

# `holding` is at the end of a row that may be large, so it is read for few runs only.
LAST_RUN_COLUMNS = ", ".join(f"newest.{field.name}" for field in fields(LastRunState)).replace(
    "newest.holding", "CASE WHEN newest.stopped_at IS NULL THEN newest.holding END"
)
"""The columns of `LastRunState`, in its order, of a row of runs that is named `newest`."""


def select_newest(session_id: str) -> str:
    """Return an SQL expression: the id of the newest top-level run of a session, or NULL.

    Args:
        session_id: an SQL expression, the id of the session.
    """
    return (
        f"(SELECT turns.run_id FROM runs AS turns WHERE turns.session_id = {session_id}"
        " AND turns.parent_run_id IS NULL ORDER BY turns.seq DESC LIMIT 1)"
    )


_NEWEST = Sql(
    f"SELECT {LAST_RUN_COLUMNS} FROM runs AS newest"
    f" WHERE newest.run_id = {select_newest(':session_id')}"
)

_RETRIES = Sql("SELECT run_id FROM runs WHERE origin_run_id = :run_id AND origin_kind = 'retry'")

_COUNT_TURNS = Sql(
    "SELECT count(*) FROM runs WHERE session_id = :session_id AND parent_run_id IS NULL"
)


def get(run_id: str, visibility: Visibility, *, summary: bool = False) -> Work[RunRow | None]:
    """Return the run, or None if no visible run has the id.

    Args:
        summary: read only `SUMMARY_COLUMNS`; the other fields are None.
    """
    sql = _GET_SUMMARY if summary else _GET
    return sql.first(RunRow, run_id=run_id, **visibility.parameters())


def get_alone(run_id: str, visibility: Visibility, maximum: int) -> Work[RunRow | None]:
    """Return a run that has ended, has no members and never paused: no other row concerns it.

    Args:
        maximum: size of the largest texts in bytes.

    Returns:
        None for every other run, and if no visible run has the id.
    """
    return _GET_ALONE.first(RunRow, run_id=run_id, maximum=maximum, **visibility.parameters())


def measure(run_id: str) -> Work[int | None]:
    """Return the size of the largest texts of a run in bytes, without reading the texts.

    None if there is no such run.
    """
    return _SIZE.value(run_id=run_id)


def get_for_update(run_id: str) -> Work[RunRow | None]:
    """Return the run and lock its row until the transaction ends; None if it does not exist."""
    return _HOLD.first(RunRow, run_id=run_id)


def get_state(run_id: str, visibility: Visibility = EVERYONE) -> Work[RunState | None]:
    """Return the state of the run, or None if no visible run has the id."""
    return _GET_STATE.first(RunState, run_id=run_id, **visibility.parameters())


@unit
def list_children(run_ids: Sequence[str]) -> Steps[dict[str, list[str]]]:
    """Return the ids of the children of each run, in order. Every given id has an entry."""
    children: dict[str, list[str]] = {run_id: [] for run_id in run_ids}
    for parent_run_id, run_id in (yield from read_by_ids(_CHILDREN, run_ids, as_columns)):
        children[parent_run_id].append(run_id)
    return children


def list_child_rows(run_ids: Sequence[str]) -> Work[list[RunRow]]:
    """Return the children of some runs, with `SUMMARY_COLUMNS` and the whole input."""
    return read_by_ids(_CHILD_ROWS, run_ids, RunRow)


def list_children_usage(run_ids: Sequence[str]) -> Work[list[tuple[str, str, str | None]]]:
    """Return parent, id and metrics (JSON, or None) of the children of some runs."""
    return read_by_ids(_CHILDREN_USAGE, run_ids, as_columns)


def get_requests(run_id: str) -> Work[str | None]:
    """Return a JSON object that describes the requests to the models of a run; None if unknown."""
    return _REQUESTS.value(run_id=run_id)


def get_causes(run_id: str) -> Work[str | None]:
    """Return the causes of a run as a JSON array; None if it has none."""
    return _CAUSES.value(run_id=run_id)


def list_children_causes(run_ids: Sequence[str]) -> Work[list[tuple[str, str, str, str | None]]]:
    """Return id, kind and id of the component, and causes (JSON, or None) of children of runs."""
    return read_by_ids(_CHILDREN_CAUSES, run_ids, as_columns)


CauseRow = tuple[str, str, str, str, str | None]
"""A requested id; id, kind and component of a run; its causes (JSON, or None)."""


def list_causes(run_ids: Sequence[str]) -> Work[list[CauseRow]]:
    """Return the causes of some runs."""
    return read_by_ids(_CAUSES_OF, run_ids, as_columns)


def list_last_failed_children(run_ids: Sequence[str]) -> Work[list[CauseRow]]:
    """Return the causes of the last failed run below each of some runs."""
    return read_by_ids(_LAST_FAILED_CHILDREN, run_ids, as_columns)


def list_in_session(
    session_id: str,
    *,
    limit: int,
    after_seq: int | None = None,
    before_seq: int | None = None,
    top_level: bool = False,
    order: Order = "asc",
    summary: bool = False,
) -> Work[list[RunRow]]:
    """Return at most `limit` runs of a session.

    Args:
        after_seq, before_seq: only runs with numbers between these.
        top_level: leave out the runs that have a parent.
        order: by number, `asc`: oldest first.
        summary: read only `SUMMARY_COLUMNS`; the other fields are None.
    """
    return _OF_SESSION[summary, top_level, order].rows(
        RunRow,
        session_id=session_id,
        after_seq=after_seq or 0,
        before_seq=before_seq or _ALL_SEQS,
        limit=limit,
    )


def list_histories(session_id: str, after_seq: int = 0) -> Work[list[StoredHistory]]:
    """Return the histories of the top-level runs of a session with higher numbers, in order."""
    return _HISTORIES.rows(StoredHistory, session_id=session_id, after_seq=after_seq)


class RecentRun(NamedTuple):
    """A run of a session that later runs get as history."""

    run_id: str
    seq: int
    error_code: str | None

    messages: str
    """Its neutral messages, a JSON array."""

    native: str | None
    """Its messages as JSON of a library; None if it has none of the given kinds."""

    @property
    def was_too_large(self) -> bool:
        """True if its conversation was larger than the context window of its model."""
        return self.error_code == "CONTEXT_EXCEEDED"


def list_recent(
    session_id: str,
    limit: int,
    maximum: int,
    *,
    native_kinds: Sequence[str] = (),
    after_seq: int = 0,
    before_seq: int | None = None,
) -> Work[list[RecentRun]]:
    """Return the last top-level runs that have ended, oldest first.

    The cost does not depend on the number of runs.

    Args:
        maximum: maximum size of all messages in bytes. The last run is returned in any case.
        native_kinds: the kinds of runners whose native messages are read, at most two.
        after_seq, before_seq: only runs with numbers between these.
    """
    native_kind = native_kinds[0] if native_kinds else ""
    former_kind = native_kinds[-1] if native_kinds else ""

    return _RECENT.rows(
        RecentRun,
        session_id=session_id,
        limit=limit,
        maximum=maximum,
        after_seq=after_seq,
        before_seq=before_seq or _ALL_SEQS,
        native_kind=native_kind,
        former_kind=former_kind,
    )


def list_messages(session_id: str, first: int, last: int) -> Work[list[tuple[int, str]]]:
    """Return the numbers and the messages (JSON) of the top-level runs in a range of numbers."""
    return _MESSAGES.rows(as_columns, session_id=session_id, first=first, last=last)


def drop_until_too_large(recent_runs: Sequence[RecentRun]) -> Sequence[RecentRun]:
    """Return the runs after the last one that was too large, for a history that is not fitted."""
    first = 0
    for index, run in enumerate(recent_runs):
        if run.was_too_large:
            first = index + 1
    return recent_runs[first:]


def lock_state(run_id: str) -> Work[RunState | None]:
    """Return the state of a run and lock its row until the transaction ends."""
    return _LOCK_STATE.first(RunState, run_id=run_id)


@single_unit
def list_open_in_session(session_id: str) -> Steps[list[str]]:
    """Return the runs of a session that have not ended, oldest first, without background work."""
    rows = yield Statement(_OPEN_IN_SESSION, {"session_id": session_id})
    return [run_id for _, run_id in sorted(map(tuple, rows))]


def list_paused_children(run_id: str) -> Work[list[str]]:
    """Return the ids of the paused members of a run."""
    return _PAUSED_CHILDREN.column(run_id=run_id)


def has_leg_effects(run_id: str) -> Work[int | None]:
    """Return 1 if the present leg of a run has begun a call that needs no approval."""
    return _LEG_EFFECTS.value(run_id=run_id)


def get_newest(session_id: str) -> Work[LastRunState | None]:
    """Return the newest top-level run of a session, None if it has none."""
    return _NEWEST.first(LastRunState, session_id=session_id)


def count_turns(session_id: str) -> Work[int]:
    """Return the number of the top-level runs of a session."""
    return _COUNT_TURNS.value(session_id=session_id)


def list_retries(run_id: str) -> Work[list[str]]:
    """Return the ids of the runs that are retries of a run, in any order."""
    return _RETRIES.column(run_id=run_id)


def list_background_work(session_id: str, purpose: str) -> Work[list[str]]:
    """Return the ids of the live runs of a session that have a purpose."""
    return _BACKGROUND_WORK.column(session_id=session_id, purpose=purpose)


def list_turns(session_id: str, after_seq: int, limit: int) -> Work[list[Turn]]:
    """Return the ended top-level runs of a session after a number and before the first open one.

    The oldest come first. A summary covers all runs up to a number, so it must not pass an open
    run.
    """
    return _TURNS.rows(Turn, session_id=session_id, after_seq=after_seq, limit=limit)


def list_worker_requests(owner: str) -> Work[list[RunState]]:
    """Return the live runs of a worker with a request: of a cancel, or a message that waits.

    A run may be there several times.
    """
    return _WORKER_REQUESTS.rows(RunState, owner=owner)


def list_cancelled_without_owner() -> Work[list[str]]:
    """Return at most 100 runs whose cancel was requested and that nothing executes.

    A server of version 0.2.1 may leave them. The cost grows with the number of paused runs.
    """
    return _CANCELLED_WITHOUT_OWNER.column()


def list_live_owners() -> Work[list[str | None]]:
    """Return the distinct owners of all live runs; None means runs without an owner."""
    return _LIVE_OWNERS.column()


@unit
def count_live_by_owner() -> Steps[dict[str | None, int]]:
    """Return the number of live runs of each owner that has some."""
    rows = yield Statement(_LIVE_BY_OWNER)
    return dict(map(tuple, rows))


def list_owners_at_work() -> Work[list[str | None]]:
    """Return the distinct owners of live runs and of ended runs whose work continues."""
    return _OWNERS_AT_WORK.column()


def list_live_of_worker(owner: str | None, *, waiting: bool = False) -> Work[list[RunRow]]:
    """Return the live runs of a worker, children before their parents.

    Args:
        owner: the worker; None for the runs without an owner.
        waiting: True to return, for `owner` None, also the runs that any process may begin.
    """
    if owner is not None:
        return _LIVE_OF.rows(RunRow, owner=owner)
    if waiting:
        return _LIVE_OR_WAITING.rows(RunRow)
    return _LIVE_WITHOUT_OWNER.rows(RunRow)
