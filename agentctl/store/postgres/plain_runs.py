"""The writes of a plain run as one statement each (`store.database.Shortcut`).

A plain run is what most runs are: it is started in a new session, or in one that has a component,
and ends with its results and its last events. Each statement has the same effects as the unit that
it replaces, in the same order of row locks: the run first, its session second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agentctl.records.runs import NewRun, RunEnd
from agentctl.records.sessions import TOKEN_COUNTERS, SessionRow
from agentctl.store.database import Sql, Statement, Steps, Value, single_unit
from agentctl.store.repositories import audit, runs, sessions, usage
from agentctl.store.repositories.events import Batch
from agentctl.store.states import RUN, change
from agentctl.store.visibility import IS_VISIBLE, Visibility


class StartedRun(NamedTuple):
    """The values that the row of a new run has from its session.

    Attributes:
        user_id, session_state: of the session.
        is_first: True if the session was created with the run.
    """

    user_id: str | None
    session_state: str | None
    is_first: bool


_NUMBERS = {
    "seq", "background", "attempt", "created_at", "started_at", "late_result", "updated_at",
    "total_tokens", "run_count", "history_bytes", "at", "count", "origin_at", "queued_at",
    "queue_turn",
}  # fmt: skip
"""The columns of the three tables that are not text."""


def _build_insert(
    table: str, columns: Sequence[str], source: str, prefix: str = "", **found: str
) -> str:
    """Build an INSERT of the rows of `source`, with parameters for the columns not in `found`."""
    selected = (
        found.get(name) or f"cast(:{prefix}{name} as {'bigint' if name in _NUMBERS else 'text'})"
        for name in columns
    )
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(selected)} {source}"


# The start: `taken` counts the run in a session that exists, `created` creates the session if
# `taken` has no row, and the run and its audit entry are inserted from the row of either. If both
# are empty, so are all inserts: the session is not visible, is of another type, has no component,
# or was created by another transaction since the snapshot. Then nothing has changed, and the unit
# runs instead. `taken` and `created` read one snapshot, so never both of them have a row.
#
# What must stay equal to the units: `_TAKE` to the update of `sessions.allocate_seq`, `_CREATE` to
# `sessions.create`, `_ADD_RUN` to `runs.create`, `_ADD_ENTRY` to the append of the audit log.
_SESSION = "RETURNING session_id, run_count, user_id, session_state"

_TAKE = (
    "UPDATE sessions SET run_count = run_count + 1,"
    " updated_at = CASE WHEN updated_at > :created_at THEN updated_at ELSE :created_at END,"
    " last_status = cast(:status as text), session_name ="
    " CASE WHEN session_name = '' THEN cast(:session_session_name as text) ELSE session_name END"
    " WHERE session_id = :session_id AND session_type = :session_session_type"
    f" AND component_data IS NOT NULL AND {IS_VISIBLE} {_SESSION}"
)

_CREATE = (
    _build_insert(
        "sessions", sessions.STORED_COLUMNS, "WHERE NOT EXISTS (SELECT 1 FROM taken)", "session_"
    )
    + f" ON CONFLICT (session_id) DO NOTHING {_SESSION}"
)

_ADD_RUN = _build_insert(
    "runs", runs.CREATED_COLUMNS, "FROM session", seq="run_count", user_id="user_id"
)

_ADD_ENTRY = _build_insert(
    "audit_log",
    audit.APPENDED_COLUMNS,
    "FROM session",
    "entry_",
    status="cast(:entry_status as bigint)",
)


def _build_start(*, audited: bool) -> Sql:
    return change(RUN, "start", "accept")(
        f"WITH taken AS ({_TAKE}), created AS ({_CREATE}), session AS ("
        "SELECT taken.*, 0 AS is_first FROM taken UNION ALL SELECT created.*, 1 FROM created"
        f"), run AS ({_ADD_RUN})"
        + (f", entry AS ({_ADD_ENTRY})" if audited else "")
        + " SELECT user_id, session_state, is_first FROM session"
    )


_STARTS = {audited: _build_start(audited=audited) for audited in (False, True)}


@single_unit
def start(
    session: SessionRow, visibility: Visibility, run: NewRun, entry: Mapping[str, Value] | None
) -> Steps[StartedRun | None]:
    """Get or create the session of a top-level run and store the run.

    Args:
        visibility: the existing sessions that the run may use.
        entry: the values of the entry of the audit log; None for none.

    Returns:
        None, without a change, if the session exists and is not visible, of another type or
        without a component.
    """
    values: dict[str, Value] = {
        **runs.build_new_values(run),
        **{f"session_{name}": value for name, value in sessions.build_values(session).items()},
        **visibility.parameters(),
    }
    if entry is not None:
        values |= {f"entry_{name}": value for name, value in entry.items()}
    rows = yield Statement(_STARTS[entry is not None], values)
    return StartedRun(rows[0][0], rows[0][1], bool(rows[0][2])) if rows else None


# The end, in one statement whose parts read the same snapshot:
#
#   ended     `runs.FINISH`, the statement of the unit, with more conditions and more columns
#   counted   the updates of `sessions.add_usage` in one
#   appended  `usage.append`
#   stored    `events.append_batch`
#
# How it is cut. `runs.FINISH` ends with `runs.CHANGED`, its RETURNING. That is removed, conditions
# are added to its WHERE, and a longer RETURNING gives the other parts the columns that they read:
# they cannot read the new row from `runs`, because the snapshot has the old one. So
# `runs.CHANGED` must stay the end of `runs.FINISH`, and the WHERE must stay a conjunction.
#
# The decision of `ended`. `sessions.last_status` is the status of the newest top-level run. Members
# have numbers of the session, too, so `run_count` alone does not show which run that is. A
# top-level run may end here if it has the highest number (it sets the status), or if a later
# top-level run exists (that one keeps the status). Otherwise only members came later, and the unit
# has to search for the newest. A session with a queue needs the unit as well: the end has to let
# the next run begin. The end of a member changes neither.
#
# The change after it. `ended` locks the row of the run, then `counted` waits for the row of the
# session: the order of all transactions. Another transaction may commit during this wait, and
# PostgreSQL then gives `counted` the new row of the session, but still the old snapshot of `runs`.
# If the new row has a higher `run_count`, or a queue, the decision of `ended` was made with old
# facts. `_IS_KNOWN` repeats it with the new row.
#
# Why a division. If `_IS_KNOWN` is false, all parts have to be undone. A condition in the WHERE of
# `counted` would leave out the counters only: the run would be ended, and its usage lost. An error
# undoes the whole statement, and a division by zero is the error that plain SQL can raise. The
# dividend is a column, since PostgreSQL computes a division of two constants when it plans the
# statement, also inside a CASE. The driver then runs the unit (`Shortcut`). Each of its statements
# has its own snapshot: those after the lock see all runs of the session.
#
# What must stay equal to the units, column by column: `counted` to `_COUNT_BYTES`, `_LAST_STATUS`
# and `_WRITE_USAGE` of `sessions`, the text of `_METRICS` to that of `sessions.add_counters`, and
# `ended` has each column that `usage.APPEND` selects. A new write of the unit
# belongs here, or its condition into `_is_plain` of `agentctl.runs.life.finish`; a new write of a
# start here, or its condition into `admit_run` of `agentctl.runs.life.admission`. Tests compare the
# tables after the statement with those after the units.
_ENDED = (
    runs.FINISH.removesuffix(runs.CHANGED).rstrip()
    + " AND (parent_run_id IS NOT NULL OR seq = (SELECT run_count FROM sessions"
    " WHERE sessions.session_id = runs.session_id) OR EXISTS (SELECT 1 FROM runs AS later"
    " WHERE later.session_id = runs.session_id AND later.seq > runs.seq"
    " AND later.parent_run_id IS NULL))"
    " AND (parent_run_id IS NOT NULL OR NOT EXISTS (SELECT 1 FROM sessions"
    " WHERE sessions.session_id = runs.session_id AND has_queue = 1))"
    " RETURNING run_id, session_id, seq, parent_run_id, user_id, component_type, component_id,"
    " status, error_code, created_at, finished_at, model, metrics, model_metrics, version,"
    " EXISTS (SELECT 1 FROM runs AS later"
    " WHERE later.session_id = runs.session_id AND later.seq > runs.seq"
    " AND later.parent_run_id IS NULL) AS is_older"
)

# The condition of `_ENDED`, with the row of the session after its lock.
_IS_KNOWN = (
    "((ended.parent_run_id IS NOT NULL OR run_count = ended.seq OR ended.is_older)"
    " AND (ended.parent_run_id IS NOT NULL OR has_queue = 0))"
)

_ADDED = {
    name: f"(coalesce((sessions.metrics::json->>'{name}')::bigint, 0)"
    f" + cast(:added_{name} as bigint))"
    for name in TOKEN_COUNTERS
}

_METRICS = "'{' || " + " || ',' || ".join(f"'\"{name}\":' || {_ADDED[name]}" for name in _ADDED)

# The division undoes the statement; see above.
_COUNT = (
    "UPDATE sessions SET history_bytes = history_bytes + cast(:history_bytes as bigint),"
    " updated_at = CASE WHEN updated_at > :finished_at THEN updated_at ELSE :finished_at END,"
    " last_status = CASE WHEN ended.parent_run_id IS NULL AND run_count = ended.seq"
    " THEN cast(:status as text) ELSE last_status END,"
    f" run_count = CASE WHEN {_IS_KNOWN} THEN run_count ELSE run_count / 0 END,"
    f" metrics = {_METRICS} || '}}', total_tokens = {_ADDED['total_tokens']}"
    " FROM ended WHERE sessions.session_id = ended.session_id"
)

_STORE_EVENTS = (
    "INSERT INTO run_events (run_id, first_seq, last_seq, events) SELECT ended.run_id,"
    " cast(:first_seq as bigint), cast(:last_seq as bigint), cast(:events as text) FROM ended"
    " ON CONFLICT (run_id, first_seq) DO UPDATE"
    " SET last_seq = excluded.last_seq, events = excluded.events"
)


def _build_end(*, recorded: bool) -> Sql:
    return change(RUN, "end", "end lost", "end waiting")(
        f"WITH ended AS ({_ENDED}), counted AS ({_COUNT}),"
        f" appended AS ({usage.APPEND} FROM ended)"
        + (f", stored AS ({_STORE_EVENTS})" if recorded else "")
        + " SELECT 1 FROM ended"
    )


_ENDS = {recorded: _build_end(recorded=recorded) for recorded in (False, True)}


@single_unit
def end(end: RunEnd, last: Batch | None) -> Steps[bool | None]:
    """Store the end of a run with its last events, and add its usage to its session.

    Args:
        last: the last events; None for a run whose events are not stored.

    Returns:
        None, without a change, if the run has ended, does not exist, or has another attempt; or if
        it is a top-level run after which only runs of members were created, or another run of its
        session waits in the queue.
    """
    values: dict[str, Value] = {
        **runs.build_end_values(end),
        # The runs of members have no history.
        "history_bytes": len((end.history or "").encode()),
        **{f"added_{name}": count for name, count in sessions.parse_counters(end.metrics).items()},
    }
    if last is not None:
        values |= {"first_seq": last.first_seq, "last_seq": last.last_seq, "events": last.events}
    rows = yield Statement(_ENDS[last is not None], values)
    return True if rows else None
