"""Sessions: one row each.

The row has counters of the runs of the session (docs/contract.md "Session records"), so that a list
reads neither runs nor histories.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from itertools import combinations
from operator import attrgetter
from typing import Any, NamedTuple

import orjson

from agentctl.records.document import parse_stored
from agentctl.records.kinds import ComponentKind
from agentctl.records.sessions import TOKEN_COUNTERS, SessionRow
from agentctl.store.database import (
    Sql,
    Statement,
    Steps,
    Value,
    Work,
    build_insert,
    single_unit,
    unit,
)
from agentctl.store.states import RUN, change
from agentctl.store.visibility import EVERYONE, IS_VISIBLE, Visibility


@dataclass(frozen=True, slots=True)
class UnusableSession:
    """A session that a run may not use: it is not visible, or has another type."""

    row: SessionRow
    """The session, for the error."""


NO_USAGE: str = orjson.dumps(dict.fromkeys(TOKEN_COUNTERS, 0)).decode()
"""The counters of a new session: a JSON object."""


class Cost(NamedTuple):
    """The cost of some tokens. It is stored beside their counters, under the same names."""

    cost: float
    """US dollars, without the tokens whose price is not known."""

    priced_tokens: int
    """The tokens that the cost includes."""

    def add(self, other: Cost) -> Cost:
        """Return the sum of two costs."""
        return Cost(round(self.cost + other.cost, 9), self.priced_tokens + other.priced_tokens)


NO_COST = Cost(0.0, 0)
"""The cost of a run that ended in an earlier version, or without a price."""


def parse_usage(metrics: str | None) -> tuple[dict[str, int], Cost]:
    """Return what `parse_counters` and `parse_cost` return, and parse the object once."""
    stored = _parse_metrics(metrics)
    return _read_counters(stored), read_cost(stored)


def parse_counters(metrics: str | None) -> dict[str, int]:
    """Return the nine token counters of a JSON object; missing and damaged counters are 0."""
    return _read_counters(_parse_metrics(metrics))


def parse_cost(metrics: str | None) -> Cost:
    """Return the cost in a JSON object of counters; `NO_COST` if it has none, or is damaged."""
    # Most rows of an earlier version need no parse.
    if not metrics or '"priced_tokens"' not in metrics:
        return NO_COST
    return read_cost(_parse_metrics(metrics))


def _parse_metrics(metrics: str | None) -> dict[str, Any]:
    if not metrics:
        return {}
    return parse_stored(metrics, dict) or {}


def _read_counters(stored: Mapping[str, Any]) -> dict[str, int]:
    counters: dict[str, int] = {}
    for name in TOKEN_COUNTERS:
        count = stored.get(name)
        counters[name] = int(count) if isinstance(count, int | float) else 0
    return counters


def read_cost(stored: Mapping[str, Any]) -> Cost:
    """Return the cost of counters that were parsed, as `parse_cost` does."""
    if "priced_tokens" not in stored:
        return NO_COST
    cost = stored.get("cost")
    tokens = stored.get("priced_tokens")
    if not isinstance(cost, int | float) or not isinstance(tokens, int):
        return NO_COST
    return Cost(float(cost), tokens)


def add_counters(metrics: str, delta: Mapping[str, int], cost: Cost = NO_COST) -> tuple[str, int]:
    """Add `delta` and a cost to the counters.

    Returns:
        The counters as JSON text, and their `total_tokens`.
    """
    counters, earlier_cost = parse_usage(metrics)
    for name in TOKEN_COUNTERS:
        counters[name] += delta.get(name, 0)

    stored_values: dict[str, float] = {**counters}
    total_cost = earlier_cost.add(cost)
    if total_cost.priced_tokens:
        stored_values |= total_cost._asdict()
    return orjson.dumps(stored_values).decode(), counters["total_tokens"]


DAMAGED_STATE = "damaged_state"
"""The key under which a change keeps the text of a state that is no JSON object."""

_STORED = tuple(field.name for field in fields(SessionRow) if field.name != "hold")
"""The columns of a new session: the columns of `SessionRow`, in its order, without `hold`."""

_get_values = attrgetter(*_STORED)
_COLUMNS = ", ".join(field.name for field in fields(SessionRow))

_GET = Sql(f"SELECT {_COLUMNS} FROM sessions WHERE session_id = :session_id AND {IS_VISIBLE}")
_HOLD = Sql(f"{_GET} FOR UPDATE")

# An import may bring back a deleted session with the same times, ids and sizes. `runs.restore`
# gives its runs an owner that no other row has had.
_IDENTITY = (
    "SELECT run_id || ' ' || coalesce(owner, '') FROM runs WHERE session_id = sessions.session_id"
    " AND parent_run_id IS NULL ORDER BY seq LIMIT 1"
)

_GET_IDENTITY = Sql(f"SELECT ({_IDENTITY}) FROM sessions WHERE session_id = :session_id")

# One statement: on PostgreSQL a second one costs as much as the rest of a short read. The runs are
# found by the row, not by the parameter. From the value of a parameter PostgreSQL would know the
# number of runs, and would plan each read again, because a short session costs less than an average
# one.
_GET_WITH_HISTORY = Sql(
    f"SELECT {_COLUMNS}, CASE WHEN history_bytes <= cast(:maximum as bigint)"
    " AND session_type <> 'workflow' THEN (SELECT utf8(joined) FROM ("
    "SELECT string_agg(substr(history, 2, length(history) - 2), ',' ORDER BY seq) AS joined"
    " FROM runs WHERE runs.session_id = sessions.session_id AND parent_run_id IS NULL"
    " AND history IS NOT NULL AND history <> '[]') AS histories) END, CASE WHEN history_bytes"
    f" > cast(:maximum as bigint) THEN ({_IDENTITY}) END"
    f" FROM sessions WHERE session_id = :session_id AND {IS_VISIBLE}"
)

_CREATE = Sql(
    f"{build_insert('sessions', _STORED)} ON CONFLICT (session_id) DO NOTHING RETURNING session_id"
)

_ADOPT = Sql(
    "UPDATE sessions SET component_id = :component_id, component_name = :component_name,"
    " component_data = :component_data WHERE session_id = :session_id AND component_data IS NULL"
    f" RETURNING {_COLUMNS}"
)

_SELECT_NAME = Sql(
    "UPDATE sessions SET session_name = :session_name"
    " WHERE session_id = :session_id AND session_name = ''"
)

# The end of a run may be stored late, and a clock may go back: neither sets the time back.
_UPDATED = "updated_at = CASE WHEN updated_at > :now THEN updated_at ELSE :now END"

_GET_SUMMARY = Sql("SELECT summary FROM sessions WHERE session_id = :session_id")

_SET_SUMMARY = Sql("UPDATE sessions SET summary = :summary WHERE session_id = :session_id")

_TAKE_SEQ = Sql(
    f"UPDATE sessions SET run_count = run_count + 1, {_UPDATED},"
    " last_status = coalesce(cast(:last_status as text), last_status)"
    " WHERE session_id = :session_id RETURNING run_count"
)

_COUNT_BYTES = Sql(
    f"UPDATE sessions SET history_bytes = history_bytes + :history_bytes, {_UPDATED}, last_status ="
    " CASE WHEN run_count = cast(:seq as bigint) THEN cast(:last_status as text)"
    " ELSE last_status END"
    " WHERE session_id = :session_id RETURNING metrics, run_count, has_queue"
)

_WRITE_USAGE = Sql(
    "UPDATE sessions SET metrics = :metrics, total_tokens = :total_tokens"
    " WHERE session_id = :session_id"
)

# The row shows that the run is the newest, also after a wait for the lock on the row.
_NEWEST_STATUS = Sql(
    "UPDATE sessions SET last_status = :last_status"
    " WHERE session_id = :session_id AND run_count = :seq RETURNING session_id"
)

_LOCK = Sql("SELECT session_id FROM sessions WHERE session_id = :session_id FOR UPDATE")

# A separate statement, after one that has locked the row of the session: on PostgreSQL it sees the
# runs that were committed while this transaction waited for the lock.
_LAST_STATUS = Sql(
    "UPDATE sessions SET last_status = :last_status WHERE session_id = :session_id"
    " AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.session_id = :session_id"
    " AND runs.seq > :seq AND runs.parent_run_id IS NULL)"
)

# The order of `delete`: the row of the session is locked, its runs are deleted, then the session.
_DELETE_RUNS = change(RUN, "delete")("DELETE FROM runs WHERE session_id = :session_id")
_DELETE = Sql("DELETE FROM sessions WHERE session_id = :session_id RETURNING run_count")

COUNT_REMOVALS = Sql(
    "UPDATE removals SET sessions = sessions + :sessions, runs = runs + :runs WHERE id = 1"
)
"""Counts rows that leave the lists; otherwise `ListTotals` would report a list as too long."""

_GET_STATE = Sql("SELECT session_state FROM sessions WHERE session_id = :session_id")
_HOLD_STATE = Sql("SELECT session_state FROM sessions WHERE session_id = :session_id FOR UPDATE")
_WRITE_STATE = Sql(
    "UPDATE sessions SET session_state = :session_state WHERE session_id = :session_id"
)

_CHANGEABLE = ("metadata", "session_name", "session_state")

_UPDATES = {
    names: Sql(
        f"UPDATE sessions SET {', '.join(f'{name} = :{name}' for name in names)},"
        f" {_UPDATED} WHERE session_id = :session_id AND {IS_VISIBLE} RETURNING {_COLUMNS}"
    )
    for count in range(1, len(_CHANGEABLE) + 1)
    for names in combinations(_CHANGEABLE, count)
}


def get(session_id: str, visibility: Visibility) -> Work[SessionRow | None]:
    """Return the session, or None if no visible session has the id."""
    return _GET.first(SessionRow, session_id=session_id, **visibility.parameters())


@single_unit
def get_with_history(
    session_id: str, visibility: Visibility, maximum: int
) -> Steps[tuple[SessionRow, bytes | None, str | None] | None]:
    """Return the session, its history and its identity; None if no visible session has the id.

    The history has the entries of `run_reads.list_histories`, joined by commas; None if there is
    none, or if it is larger than `maximum` bytes. Only then the identity of `get_identity` is read.
    """
    values: dict[str, Value] = {"session_id": session_id, "maximum": maximum}
    rows = yield Statement(_GET_WITH_HISTORY, {**values, **visibility.parameters()})
    if not rows:
        return None
    *columns, history, identity = rows[0]
    return SessionRow(*columns), history, identity


def get_identity(session_id: str) -> Work[str | None]:
    """Return a text that differs between a deleted session and one with its id and times.

    None if the session has no runs, or does not exist.
    """
    return _GET_IDENTITY.value(session_id=session_id)


def get_for_update(session_id: str, visibility: Visibility) -> Work[SessionRow | None]:
    """Return the session and lock its row.

    Until the transaction ends, no other transaction changes or deletes the session, or creates a
    run in it.

    Returns:
        The session, or None if no visible session has the id.
    """
    return _HOLD.first(SessionRow, session_id=session_id, **visibility.parameters())


def build_session(
    session_id: str,
    session_type: ComponentKind,
    *,
    user_id: str | None,
    now: int,
    component_id: str | None = None,
    component_name: str | None = None,
    component_data: str | None = None,
    session_name: str = "",
    session_state: str | None = None,
    metadata: str | None = None,
    first_status: str | None = None,
) -> SessionRow:
    """Build a session, to be stored.

    `component_data`, `session_state` and `metadata` are JSON texts. `now` is in microseconds UTC.
    `first_status` is the status of run 1, which the same transaction creates; None without runs.
    """
    return SessionRow(
        session_id,
        session_type,
        component_id,
        component_name,
        user_id,
        session_name,
        total_tokens=0,
        run_count=int(first_status is not None),
        history_bytes=0,
        last_status=first_status,
        created_at=now,
        updated_at=now,
        hold=None,
        metrics=NO_USAGE,
        component_data=component_data,
        metadata=metadata,
        summary=None,
        session_state=session_state,
    )


def create(row: SessionRow) -> Work[bool]:
    """Store a new session. Return False if the id exists (for any owner)."""
    return _CREATE.has_rows(**dict(zip(_STORED, _get_values(row), strict=True)))


@unit
def get_or_create_for_run(
    row: SessionRow, visibility: Visibility
) -> Steps[SessionRow | UnusableSession]:
    """Return the session of a run that is about to be created; create it if it does not exist.

    A session without a component gets the component of its first run (docs/contract.md
    "Sessions").

    Args:
        row: the session to create, from `build_session`, with the component of the run.

    Returns:
        The stored session. `UnusableSession`, without a change, if it exists and is not visible or
        has another type than `row`.
    """
    if (yield from create(row)):
        return row

    existing = yield from get_for_update(row.session_id, EVERYONE)
    if existing is None:
        # The session was deleted between the two statements. That cannot happen on SQLite.
        return (yield from get_or_create_for_run(row, visibility))

    if not visibility.sees(existing.user_id) or existing.session_type != row.session_type:
        return UnusableSession(existing)

    if existing.component_data is not None:
        return existing

    adopted_rows = yield Statement(
        _ADOPT,
        {
            "session_id": row.session_id,
            "component_id": row.component_id,
            "component_name": row.component_name,
            "component_data": row.component_data,
        },
    )

    return SessionRow(*adopted_rows[0]) if adopted_rows else existing


@unit
def update(
    session_id: str, visibility: Visibility, changes: Mapping[str, str | None], now: int
) -> Steps[SessionRow | None]:
    """Replace any of `session_name`, `session_state` and `metadata`.

    Args:
        changes: the new values by column; state and metadata are JSON texts or None. An empty
            mapping changes nothing, not even `updated_at`.

    Returns:
        The session after the change, or None if no visible session has the id.
    """
    if not changes:
        return (yield from get(session_id, visibility))

    values: dict[str, Value] = {"session_id": session_id, "now": now, **changes}
    sql = _UPDATES[tuple(sorted(changes))]
    rows = yield Statement(sql, {**values, **visibility.parameters()})
    if not rows:
        return None

    if "session_name" in changes:
        yield Statement(COUNT_REMOVALS, {"sessions": 1, "runs": 0})
    return SessionRow(*rows[0])


def parse_state(text: str | None) -> dict[str, Any]:
    """Return a stored state before a change; a damaged one is a text in it, so that it is kept."""
    if text is None:
        return {}
    stored_state: dict[str, Any] | None = parse_stored(text, dict)
    if stored_state is None:
        return {DAMAGED_STATE: text}
    return stored_state


def get_state(session_id: str) -> Work[str | None]:
    """Return the state of a session as JSON text; None if it has none or does not exist."""
    return _GET_STATE.value(session_id=session_id)


@unit
def merge_state(
    session_id: str, changes: Mapping[str, Any], removed: Collection[str] = ()
) -> Steps[str | None]:
    """Replace and remove top-level keys of the state of a session; other keys are kept.

    Args:
        changes: JSON values by key.

    Returns:
        The state after the change as JSON text, None if it is empty or there is no such session.
    """
    rows = yield Statement(_HOLD_STATE, {"session_id": session_id})
    if not rows:
        return None

    ((stored_text,),) = rows
    stored_state = parse_state(stored_text)
    merged_state = {key: value for key, value in stored_state.items() if key not in removed}
    merged_state |= changes
    text = orjson.dumps(merged_state).decode() if merged_state else None
    yield Statement(_WRITE_STATE, {"session_id": session_id, "session_state": text})
    return text


def get_summary(session_id: str) -> Work[str | None]:
    """Return the summary of a session as JSON text, None if it has none."""
    return _GET_SUMMARY.value(session_id=session_id)


def set_summary(session_id: str, summary: str) -> Work[None]:
    """Replace the summary of a session, a JSON text."""
    return _SET_SUMMARY.execute(session_id=session_id, summary=summary)


@unit
def delete(session_id: str) -> Steps[bool]:
    """Delete a session with its runs and their events. Return False if it does not exist.

    A caller that must not delete a live run locks the session (`get_for_update`) before it looks
    for one.
    """
    yield Statement(_DELETE_RUNS, {"session_id": session_id})
    rows = yield Statement(_DELETE, {"session_id": session_id})
    for (run_count,) in rows:
        yield Statement(COUNT_REMOVALS, {"sessions": 1, "runs": run_count})
    return bool(rows)


@unit
def allocate_seq(
    session_id: str, now: int, last_status: str | None, session_name: str | None = None
) -> Steps[int | None]:
    """Allocate the number of the next run of a session; lock the row of the session.

    Args:
        last_status: the status of the new run; None keeps the last status of the session (for the
            run of a member).
        session_name: the name for a session without a name.

    Returns:
        The number, from 1; None if the session does not exist.
    """
    rows = yield Statement(
        _TAKE_SEQ, {"session_id": session_id, "now": now, "last_status": last_status}
    )
    if not rows:
        return None
    if session_name:
        yield Statement(_SELECT_NAME, {"session_id": session_id, "session_name": session_name})
    seq: int = rows[0][0]
    return seq


@unit
def add_usage(
    session_id: str,
    delta: Mapping[str, int],
    history_bytes: int,
    now: int,
    *,
    last: tuple[int, str] | None = None,
    cost: Cost = NO_COST,
) -> Steps[bool]:
    """Add the usage of a run to the counters of its session, if the session exists.

    Args:
        delta: the token counters of the run itself; its children add their own.
        cost: the cost of these tokens.
        history_bytes: size of the history of the run in bytes of UTF-8, as `runs.list_histories`
            returns it.
        last: number and status of a top-level run, for the last status of the session.

    Returns:
        True if a run may wait in the queue of the session (`repositories.queue`).
    """
    seq, status = last or (None, None)
    values: dict[str, Value] = {"session_id": session_id, "seq": seq, "last_status": status}
    rows = yield Statement(_COUNT_BYTES, {**values, "history_bytes": history_bytes, "now": now})
    if not rows:
        return False

    stored_metrics, run_count, has_queue = rows[0]
    if seq is not None and seq != run_count:
        yield Statement(_LAST_STATUS, values)

    if any(delta.values()):
        metrics, total = add_counters(stored_metrics, delta, cost)
        yield Statement(_WRITE_USAGE, {**values, "metrics": metrics, "total_tokens": total})

    return bool(has_queue)


@unit
def set_last_status(session_id: str, seq: int, status: str) -> Steps[None]:
    """Store the status of a top-level run in its session, unless a newer one has been created."""
    values: dict[str, Value] = {"session_id": session_id, "seq": seq, "last_status": status}
    if (yield Statement(_NEWEST_STATUS, values)):
        return
    yield Statement(_LOCK, {"session_id": session_id})
    yield Statement(_LAST_STATUS, values)
