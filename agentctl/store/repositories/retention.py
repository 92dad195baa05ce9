"""Retention of sessions: holds, idle sessions, and the removal of whole sessions.

A held session is not deleted: the statements here leave it, and a trigger of the schema stops every
other deletion, including a deletion by a server that does not know holds (docs/retention.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentctl.records.sessions import PruneRecord
from agentctl.store import listing
from agentctl.store.compared import Filtered
from agentctl.store.database import Sql, Statement, Steps, Work, unit
from agentctl.store.repositories.lists import SESSION_LEADS
from agentctl.store.repositories.quotas import build_size
from agentctl.store.repositories.sessions import COUNT_REMOVALS
from agentctl.store.states import IS_LIVE, RUN, change
from agentctl.store.visibility import EVERYONE, IS_VISIBLE, Visibility


@dataclass(frozen=True, slots=True)
class IdleSessions:
    """A choice of sessions by their last use."""

    before: int
    """Only sessions that were used before this time, microseconds UTC."""

    session_type: str | None = None
    """Only sessions of this type; None for all."""

    component_id: str | None = None
    """Only sessions of this component; None for all."""

    without_component: bool = False
    """True for only the sessions without a component."""

    visibility: Visibility = EVERYONE


@dataclass(slots=True)
class IdleRow:
    """A session that was not used for a time."""

    session_id: str
    session_type: str
    component_id: str | None
    user_id: str | None
    run_count: int
    updated_at: int

    is_held: int
    """1 if it is held."""

    size: int
    """Bytes of its texts and of the texts of its runs; 0 if they were not measured."""

    is_busy: bool = False
    """True if it has a live or paused run."""

    @property
    def is_removable(self) -> bool:
        """True if nothing keeps the session from its removal."""
        return not (self.is_held or self.is_busy)


_IS_HELD = "CASE WHEN hold IS NULL THEN 0 ELSE 1 END"

_COLUMNS = "session_id, session_type, component_id, user_id, run_count, updated_at"

_IDLE = listing.Listing(table="sessions", columns=f"{_COLUMNS}, {_IS_HELD}, 0", id="session_id")

_MEASURED = listing.Listing(
    table="sessions",
    columns=f"{_COLUMNS}, {_IS_HELD}, {build_size('sessions')} + coalesce((SELECT"
    f" cast(sum({build_size('runs')}) as bigint) FROM runs"
    " WHERE runs.session_id = sessions.session_id), 0)",
    id="session_id",
)

_NEXT_COMPONENT = Sql("SELECT min(component_id) FROM sessions WHERE component_id > :after")

_SET_HOLD = Sql("UPDATE sessions SET hold = :hold WHERE session_id = :session_id")

_OF_SESSIONS = f"session_id IN ({listing.ID_GROUP})"
_OF_THEIR_RUNS = f"run_id IN (SELECT run_id FROM runs WHERE {_OF_SESSIONS})"

# The locks are taken in the order of the ids: two removals cannot deadlock.
_LOCK_SESSIONS = Sql(
    f"SELECT session_id, {_IS_HELD}, updated_at FROM sessions"
    f" WHERE {_OF_SESSIONS} AND {IS_VISIBLE} ORDER BY session_id FOR UPDATE"
)


# A separate statement: on PostgreSQL it sees the runs that were committed during a wait for a lock.
def _build_busy(is_live: str) -> Sql:
    return Sql(
        f"SELECT session_id FROM runs WHERE {_OF_SESSIONS} AND {is_live}"
        f" UNION SELECT session_id FROM runs WHERE {_OF_SESSIONS} AND status = 'PAUSED'"
    )


# Background work keeps a session busy for an erasure only.
_BUSY_SESSIONS = _build_busy(f"{IS_LIVE} AND purpose IS NULL")
_SESSIONS_WITH_WORK = _build_busy(IS_LIVE)

# In this order. The rows that refer to a run or session with ON DELETE CASCADE follow.
_DELETE_DELIVERIES = Sql(f"DELETE FROM webhook_deliveries WHERE {_OF_THEIR_RUNS}")
_DELETE_KEYS = Sql(f"DELETE FROM idempotency WHERE {_OF_THEIR_RUNS}")
_DELETE_RUNS = change(RUN, "delete")(f"DELETE FROM runs WHERE {_OF_SESSIONS}")
_DELETES_OF_SESSIONS = (_DELETE_DELIVERIES, _DELETE_KEYS, _DELETE_RUNS)
_DELETE_SESSIONS = Sql(f"DELETE FROM sessions WHERE {_OF_SESSIONS} RETURNING run_count")


def set_hold(session_id: str, hold: str | None) -> Work[None]:
    """Hold a session, or end its hold.

    Args:
        hold: the JSON text of a `HoldRecord`; None ends the hold.
    """
    return _SET_HOLD.execute(session_id=session_id, hold=hold)


@unit
def list_components() -> Steps[list[str]]:
    """Return the ids of the components that have sessions.

    Each one is a search of an index: the cost does not depend on the number of sessions.
    """
    component_ids = list[str]()
    while True:
        last_id = component_ids[-1] if component_ids else ""
        ((next_id,),) = yield Statement(_NEXT_COMPONENT, {"after": last_id})
        if next_id is None:
            return component_ids
        component_ids.append(next_id)


@unit
def list_idle(
    choice: IdleSessions, limit: int, after: listing.Cursor | None = None, *, measured: bool = False
) -> Steps[listing.RowPage[IdleRow]]:
    """Read a page of idle sessions, the longest unused first.

    It can have fewer sessions than its limit, and a next page.

    Args:
        measured: True to read the sizes.
    """
    compared = listing.Conditions()
    if choice.without_component:
        compared = compared.with_condition("component_id IS NULL")

    filtered = Filtered(
        _MEASURED if measured else _IDLE,
        SESSION_LEADS["updated_at"],
        choice.visibility,
        {"session_type": choice.session_type, "component_id": choice.component_id},
        compared=compared,
        times=(None, choice.before),
    )

    # With a total nothing is counted.
    page = listing.Slice("updated_at", "asc", limit, after=after, total=(0, False))
    row_page = yield from filtered.list_page(page, IdleRow)

    for group in listing.group_ids([row.session_id for row in row_page.rows]):
        busy_rows = yield Statement(_BUSY_SESSIONS, group)
        busy_ids = {session_id for (session_id,) in busy_rows}
        for row in row_page.rows:
            if row.session_id in busy_ids:
                row.is_busy = True

    return row_page


@unit
def remove_sessions(
    session_ids: Sequence[str],
    visibility: Visibility = EVERYONE,
    *,
    idle_before: int | None = None,
    spares_background: bool = False,
) -> Steps[PruneRecord]:
    """Remove sessions with everything that belongs to them.

    That is: runs, events, steps, checkpoints, approvals, webhook deliveries and idempotency keys.
    Held sessions stay, and so do sessions with a live or paused run. Memories belong to users, sums
    of usage and the audit log to the operator: they stay as well.

    Args:
        session_ids: a bounded number of ids (`MAXIMUM_PRUNED`): other writers wait for the unit.
        visibility: a session that is not visible counts as missing.
        idle_before: a session that was used at this time or later stays, microseconds UTC; None
            removes it as well.
        spares_background: True if live background work keeps a session busy as well.
    """
    removal = PruneRecord(removed=[], held=[], busy=[], used=[], missing=[])
    find_busy = _SESSIONS_WITH_WORK if spares_background else _BUSY_SESSIONS

    for group in listing.group_ids(sorted(set(session_ids))):
        locked_rows = yield Statement(_LOCK_SESSIONS, {**group, **visibility.parameters()})
        rows_by_id = {row[0]: row for row in locked_rows}
        busy_rows = yield Statement(find_busy, group)
        busy_ids = {session_id for (session_id,) in busy_rows}

        removable_ids = list[str]()
        for session_id in listing.read_group(group):
            _, is_held, updated_at = rows_by_id.get(session_id, (None, None, None))
            if updated_at is None:
                removal["missing"].append(session_id)
            elif is_held:
                removal["held"].append(session_id)
            elif session_id in busy_ids:
                removal["busy"].append(session_id)
            elif idle_before is not None and updated_at >= idle_before:
                removal["used"].append(session_id)
            else:
                removable_ids.append(session_id)

        for removable_group in listing.group_ids(removable_ids):
            for delete in _DELETES_OF_SESSIONS:
                yield Statement(delete, removable_group)

            run_counts = yield Statement(_DELETE_SESSIONS, removable_group)
            runs = sum(run_count for (run_count,) in run_counts)
            yield Statement(COUNT_REMOVALS, {"sessions": len(run_counts), "runs": runs})

        removal["removed"] += removable_ids

    return removal
