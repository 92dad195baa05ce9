"""The runs that wait for a server: the legs that any server may claim, and the queue of a session.

A run that waits in the queue is PENDING, has no owner and has a start checkpoint. Its `queue_turn`
is 0 while it waits for the end of the earlier runs of its session, -1 while it waits only for the
begin of the earlier runs that wait, and otherwise the time since which any server may begin it. At
most the first waiting run of a session has its turn, so that the index of the turns has one entry
for each session: the cost of a claim does not depend on the length of a queue, and no session
delays another one.

A transaction that changes the queue of a session locks the row of the session first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentctl.records.runs import RunState
from agentctl.store.database import Sql, Statement, Steps, Value, Work, single_unit, unit
from agentctl.store.listing import ID_GROUP, as_columns, read_by_ids
from agentctl.store.repositories.run_reads import STATE_COLUMNS
from agentctl.store.states import IS_LIVE, RUN, change

AFTER_RUNS = 0
"""The turn of a run that waits for the end of the earlier runs of its session."""

AFTER_QUEUE = -1
"""The turn of a run that waits for the begin of the earlier runs that wait in its session."""

IS_QUEUED = "status = 'PENDING' AND queue_turn IS NOT NULL AND started_at IS NULL"
"""The condition that a run waits in the queue. A partial index has the same condition."""

# The bound of the time is true for every run that waits: it lets SQLite choose the index.
IS_IN_QUEUE = f"{IS_QUEUED} AND queued_at > 0"
"""The same condition, for a read of all queues."""

_SINCE = "coalesce(queue_turn, created_at)"

_NEXT_LEGS = Sql(
    f"SELECT {STATE_COLUMNS}, {_SINCE} FROM runs WHERE {RUN.where('claim')}"
    f" AND {_SINCE} >= :since"
    f" AND ({_SINCE} > :since OR run_id > :run_id)"
    f" ORDER BY {_SINCE}, run_id LIMIT :limit"
)

_HEAD = Sql(
    f"SELECT run_id, seq, queue_turn FROM runs WHERE session_id = :session_id AND {IS_LIVE}"
    " AND status = 'PENDING' AND queue_turn IS NOT NULL ORDER BY seq LIMIT 1"
)

_EARLIER = Sql(
    f"SELECT seq FROM runs WHERE session_id = :session_id AND {IS_LIVE} AND seq < :seq"
    " AND parent_run_id IS NULL UNION ALL SELECT seq FROM runs WHERE session_id = :session_id"
    " AND status = 'PAUSED' AND seq < :seq AND parent_run_id IS NULL LIMIT 1"
)

_GIVE_TURN = change(RUN, "give turn")(
    "UPDATE runs SET queue_turn = :at WHERE run_id = :run_id AND {where} RETURNING run_id"
)

_SET_QUEUE = Sql(
    "UPDATE sessions SET has_queue = :has_queue WHERE session_id = :session_id"
    " AND has_queue <> :has_queue"
)

_COUNT = Sql(f"SELECT count(*) FROM (SELECT 1 FROM runs WHERE {IS_IN_QUEUE} LIMIT :limit) AS found")

_COUNT_IN_SESSION = Sql(
    f"SELECT count(*) FROM (SELECT 1 FROM runs WHERE session_id = :session_id AND {IS_LIVE}"
    f" AND {IS_QUEUED} LIMIT :limit) AS found"
)

_POSITIONS = Sql(
    "SELECT run_id, (SELECT count(*) FROM runs AS earlier"
    f" WHERE earlier.session_id = listed.session_id AND {IS_LIVE} AND {IS_QUEUED}"
    " AND earlier.seq <= listed.seq) FROM runs AS listed"
    f" WHERE run_id IN ({ID_GROUP}) AND {IS_QUEUED}"
)

_OVERDUE = Sql(
    f"SELECT run_id FROM runs WHERE {IS_QUEUED} AND queued_at <= :before ORDER BY queued_at"
    " LIMIT 100"
)

_STALLED = Sql(
    f"SELECT DISTINCT session_id FROM runs WHERE {IS_IN_QUEUE} AND queue_turn <= 0"
    " AND NOT EXISTS (SELECT 1 FROM runs AS earlier WHERE earlier.session_id = runs.session_id"
    f" AND earlier.seq < runs.seq AND earlier.{IS_LIVE} AND earlier.parent_run_id IS NULL"
    " AND (runs.queue_turn = 0 OR earlier.queue_turn IS NOT NULL))"
    " AND NOT EXISTS (SELECT 1 FROM runs AS earlier WHERE earlier.session_id = runs.session_id"
    " AND earlier.seq < runs.seq AND earlier.status = 'PAUSED' AND earlier.parent_run_id IS NULL"
    " AND runs.queue_turn = 0) LIMIT 100"
)

_LOCK_SESSION = Sql("SELECT session_id FROM sessions WHERE session_id = :session_id FOR UPDATE")


class NextLeg(NamedTuple):
    """A run that any server may claim."""

    state: RunState

    since: int
    """The time since which any server may claim it, in microseconds UTC."""


@single_unit
def list_next_legs(limit: int, after: NextLeg | None = None) -> Steps[list[NextLeg]]:
    """Return runs that any server may claim, those that wait longest first.

    Args:
        after: only runs that come later than this one; None for all.
    """
    values: dict[str, Value] = {"limit": limit, "since": -1, "run_id": ""}
    if after is not None:
        values |= {"since": after.since, "run_id": after.state.run_id}
    rows = yield Statement(_NEXT_LEGS, values)
    return [NextLeg(RunState(*row[:-1]), row[-1]) for row in rows]


@unit
def advance(session_id: str, at: int) -> Steps[bool]:
    """Let the first run that waits in a session begin, if it may; the row of the session is locked.

    Returns:
        True if a server may claim it now.
    """
    rows = yield Statement(_HEAD, {"session_id": session_id})
    if not rows:
        yield Statement(_SET_QUEUE, {"session_id": session_id, "has_queue": 0})
        return False

    run_id, seq, turn = rows[0]
    if turn > 0:
        return False
    if turn == AFTER_RUNS and (yield Statement(_EARLIER, {"session_id": session_id, "seq": seq})):
        return False
    return bool((yield Statement(_GIVE_TURN, {"run_id": run_id, "at": at})))


@unit
def list_positions(run_ids: Sequence[str]) -> Steps[dict[str, int]]:
    """Return the places of runs in the queues of their sessions, from 1; of those that wait."""
    return dict((yield from read_by_ids(_POSITIONS, run_ids, as_columns)))


def list_overdue(before: int) -> Work[list[str]]:
    """Return at most 100 runs that have waited in the queue since a time, longest first."""
    return _OVERDUE.column(before=before)


def list_stalled() -> Work[list[str]]:
    """Return at most 100 sessions whose first waiting run may begin, but has not got its turn.

    A server of an earlier version ends a run without a look at the queue. The cost grows with the
    number of runs that wait.
    """
    return _STALLED.column()


def lock_session(session_id: str) -> Work[bool]:
    """Lock the row of a session until the transaction ends; return False if there is none."""
    return _LOCK_SESSION.has_rows(session_id=session_id)


@unit
def advance_stalled(session_id: str, at: int) -> Steps[bool]:
    """Lock the row of a session, and let its first waiting run begin, if it may (`advance`)."""
    if not (yield from lock_session(session_id)):
        return False
    return (yield from advance(session_id, at))


def count(limit: int) -> Work[int]:
    """Return the number of runs that wait in the queue of the database, at most `limit`."""
    return _COUNT.value(limit=limit)


def count_in_session(session_id: str, limit: int) -> Work[int]:
    """Return the number of runs that wait in the queue of a session, at most `limit`."""
    return _COUNT_IN_SESSION.value(session_id=session_id, limit=limit)


@unit
def add(session_id: str, at: int) -> Steps[bool]:
    """Note that a new run waits in a session whose row is locked; let it begin if it may.

    Returns:
        True if a server may claim a run of the session now.
    """
    yield Statement(_SET_QUEUE, {"session_id": session_id, "has_queue": 1})
    return (yield from advance(session_id, at))
