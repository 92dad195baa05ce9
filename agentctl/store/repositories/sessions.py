"""Sessions as repositories take and give them.

Nobody changes a row. It is not frozen for the sake of those that are made by the page: to make a
frozen one takes nine times as long.

The list of sessions.

The nine counters of a session (contract.md 3), kept as JSON text.

Sessions: one row each, with counters, so that a list never reads what a session holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from itertools import combinations
from typing import Literal

import orjson

from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.store.database import Sql, Statement, Steps, Value, unit
from agentctl.store.listing import (
    Cursor,
    Filter,
    Lead,
    Listing,
    Order,
    RowPage,
    Slice,
    prefix_range,
    present_filters,
)
from agentctl.store.totals import Totals
from agentctl.store.visibility import EVERYONE, IS_VISIBLE, OWNER_FILTERS, Visibility

__all__ = [
    "LISTING",
    "NO_USAGE",
    "SessionQuery",
    "SessionRow",
    "SessionRowPage",
    "SummaryRow",
    "UnusableSession",
    "add_counters",
    "add_usage",
    "allocate_seq",
    "build_session",
    "create",
    "delete",
    "get",
    "get_for_update",
    "get_or_create_for_run",
    "list_page",
    "parse_counters",
    "set_last_status",
    "update",
]


@dataclass(slots=True)
class SummaryRow:
    """What a list shows of a session. Times are microseconds."""

    session_id: str
    session_type: str
    component_id: str | None
    component_name: str | None
    user_id: str | None
    session_name: str
    total_tokens: int
    run_count: int
    history_bytes: int
    last_status: str | None
    created_at: int
    updated_at: int


@dataclass(slots=True)
class SessionRow(SummaryRow):
    """A session as it is stored: these are JSON texts."""

    metrics: str
    component_data: str | None
    metadata: str | None
    summary: str | None
    session_state: str | None


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Which sessions to list. `name_prefix` is compared without regard to ASCII case."""

    visibility: Visibility
    session_type: str | None = None
    component_id: str | None = None
    user_id: str | None = None
    name_prefix: str | None = None
    sort_by: Literal["created_at", "updated_at"] = "created_at"
    sort_order: Order = "desc"
    limit: int = 20
    offset: int = 0
    after: Cursor | None = None


@dataclass(frozen=True, slots=True)
class UnusableSession:
    """A session that a run may not use: it is not visible, or of another type."""

    row: SessionRow


SessionRowPage = RowPage[SummaryRow]

_NAME = "lower(session_name)"
_START_LENGTH = 3
_START = f"substr({_NAME}, 1, {_START_LENGTH})"
_NAME_FROM = {"name_from": Filter(_NAME, ">= :name_from")}
_NAME_TO = _NAME_FROM | {"name_to": Filter(_NAME, "< :name_to")}
_NAME_START = _NAME_TO | {"name_start": Filter(_START, "= :name_start")}

_BOTH = ("created_at", "updated_at")
_CREATED = ("created_at",)

LISTING = Listing(
    table="sessions",
    columns=", ".join(field.name for field in fields(SummaryRow)),
    id="session_id",
    sorts=_BOTH,
    free={
        "user_id": Filter("user_id", "= :user_id"),
        "component_id": Filter("component_id", "= :component_id"),
        "session_type": Filter("session_type", "= :session_type"),
    },
    choices=(OWNER_FILTERS, ({}, _NAME_FROM, _NAME_TO, _NAME_START)),
    leads=(
        Lead(("user_id", _NAME)),
        Lead(("user_id", "component_id"), _CREATED),
        Lead(("user_id", "session_type"), _CREATED),
        Lead(("user_id",), _BOTH),
        Lead((_NAME,)),
        # Where very many names begin alike they are a large part of those with these characters.
        Lead((_START,), _CREATED),
        Lead(("component_id",), _BOTH),
        Lead(("session_type",), _BOTH),
    ),
    implied=(_START,),
    removals="sessions",
)


@unit
def list_page(query: SessionQuery, known: Totals | None = None) -> Steps[SessionRowPage]:
    """One page of the sessions that are visible, and how many there are.

    Args:
        known: what is known of the database (`totals.totals_of`).
    """
    part = Slice(query.sort_by, query.sort_order, query.limit, query.offset, query.after)
    return (yield from LISTING.page(_filters(query), part, SummaryRow, known=known))


def _filters(query: SessionQuery) -> dict[str, Value]:
    filters = query.visibility.filters() | present_filters(query, LISTING.free)
    if query.name_prefix:
        start, end = prefix_range(query.name_prefix)
        filters["name_from"] = start
        if end is not None:
            filters["name_to"] = end
            if len(start) >= _START_LENGTH:
                filters["name_start"] = start[:_START_LENGTH]
    return filters


NO_USAGE: str = orjson.dumps(dict.fromkeys(TOKEN_COUNTERS, 0)).decode()
"""What a new session has used."""


def parse_counters(metrics: str | None) -> dict[str, int]:
    """The counters in a JSON object; those that it does not have are 0."""
    stored = orjson.loads(metrics) if metrics else {}
    return {name: int(stored.get(name) or 0) for name in TOKEN_COUNTERS}


def add_counters(metrics: str, delta: Mapping[str, int]) -> tuple[str, int]:
    """The counters with `delta` added: as JSON text, and their total_tokens."""
    total = parse_counters(metrics)
    for name in TOKEN_COUNTERS:
        total[name] += delta.get(name, 0)
    return orjson.dumps(total).decode(), total["total_tokens"]


_NAMES = tuple(field.name for field in fields(SessionRow))
_COLUMNS = ", ".join(_NAMES)

_GET = Sql(f"SELECT {_COLUMNS} FROM sessions WHERE session_id = :session_id AND {IS_VISIBLE}")
_HOLD = Sql(f"{_GET} FOR UPDATE")

_CREATE = Sql(
    f"INSERT INTO sessions ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in _NAMES)})"
    " ON CONFLICT (session_id) DO NOTHING RETURNING session_id"
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

_TAKE_SEQ = Sql(
    "UPDATE sessions SET run_count = run_count + 1, updated_at = :now,"
    " last_status = coalesce(cast(:last_status as text), last_status)"
    " WHERE session_id = :session_id RETURNING run_count"
)

# What is written down late, of a run that ended a while ago, does not set the time back.
_COUNT_BYTES = Sql(
    "UPDATE sessions SET history_bytes = history_bytes + :history_bytes,"
    " updated_at = CASE WHEN updated_at > :now THEN updated_at ELSE :now END"
    " WHERE session_id = :session_id RETURNING metrics"
)

_WRITE_USAGE = Sql(
    "UPDATE sessions SET metrics = :metrics, total_tokens = :total_tokens"
    " WHERE session_id = :session_id"
)

# Of the newest run: the row itself tells that it is, also when it had to be waited for.
_NEWEST_STATUS = Sql(
    "UPDATE sessions SET last_status = :last_status"
    " WHERE session_id = :session_id AND run_count = :seq RETURNING session_id"
)

_LOCK = Sql("SELECT session_id FROM sessions WHERE session_id = :session_id FOR UPDATE")

# A statement of its own, after one that has locked the session's row: on PostgreSQL it sees the
# runs that were committed while this transaction waited for the lock.
_LAST_STATUS = Sql(
    "UPDATE sessions SET last_status = :last_status WHERE session_id = :session_id"
    " AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.session_id = :session_id"
    " AND runs.seq > :seq AND runs.parent_run_id IS NULL)"
)

# The session first is held, then its runs go, then it goes itself: see `delete`.
_DELETE_RUNS = Sql("DELETE FROM runs WHERE session_id = :session_id")
_DELETE = Sql("DELETE FROM sessions WHERE session_id = :session_id RETURNING run_count")

# What takes a row out of a list counts it, or `totals` would take the list for longer than it is.
_COUNT_REMOVALS = Sql(
    "UPDATE removals SET sessions = sessions + :sessions, runs = runs + :runs WHERE id = 1"
)

_CHANGEABLE = ("metadata", "session_name", "session_state")

_UPDATES = {
    names: Sql(
        f"UPDATE sessions SET {', '.join(f'{name} = :{name}' for name in names)},"
        f" updated_at = :now WHERE session_id = :session_id AND {IS_VISIBLE} RETURNING {_COLUMNS}"
    )
    for count in range(1, len(_CHANGEABLE) + 1)
    for names in combinations(_CHANGEABLE, count)
}


@unit
def get(session_id: str, visibility: Visibility) -> Steps[SessionRow | None]:
    """The session, or None when there is none that is visible."""
    rows = yield Statement(_GET, {"session_id": session_id, **visibility.parameters()})
    return SessionRow(*rows[0]) if rows else None


@unit
def get_for_update(session_id: str, visibility: Visibility) -> Steps[SessionRow | None]:
    """Like `get`, to change it: until the transaction ends nobody else changes or removes it, or
    begins a run in it."""
    rows = yield Statement(_HOLD, {"session_id": session_id, **visibility.parameters()})
    return SessionRow(*rows[0]) if rows else None


def build_session(
    session_id: str,
    session_type: str,
    *,
    user_id: str | None,
    now: int,
    component_id: str | None = None,
    component_name: str | None = None,
    component_data: str | None = None,
    session_name: str = "",
    session_state: str | None = None,
    metadata: str | None = None,
) -> SessionRow:
    """A session without runs, to be created. `component_data`, state and metadata: JSON texts."""
    return SessionRow(
        session_id, session_type, component_id, component_name, user_id, session_name,
        total_tokens=0, run_count=0, history_bytes=0, last_status=None,
        created_at=now, updated_at=now, metrics=NO_USAGE, component_data=component_data,
        metadata=metadata, summary=None, session_state=session_state,
    )  # fmt: skip


@unit
def create(row: SessionRow) -> Steps[bool]:
    """Store a new session; False when its id is taken, whoever has it."""
    rows = yield Statement(_CREATE, dict(zip(_NAMES, astuple(row), strict=True)))
    return bool(rows)


@unit
def get_or_create_for_run(
    row: SessionRow, visibility: Visibility
) -> Steps[SessionRow | UnusableSession]:
    """The session of a run that is about to be created, made when it does not exist.

    A session that was created without a component gets that of its first run (contract.md 3).

    Args:
        row: the session to make, of `new_session`, with the component of the run.
        visibility: what the caller sees.

    Returns:
        The stored session, or Foreign (and nothing was changed) when it exists and is not visible
        or of another type than `row`.
    """
    if (yield from create(row)):
        return row
    stored = yield from get_for_update(row.session_id, EVERYONE)
    if stored is None:
        # Deleted between the two statements; SQLite cannot get here.
        return (yield from get_or_create_for_run(row, visibility))
    if not visibility.sees(stored.user_id) or stored.session_type != row.session_type:
        return UnusableSession(stored)
    if stored.component_data is not None:
        return stored
    adopted = yield Statement(
        _ADOPT,
        {
            "session_id": row.session_id,
            "component_id": row.component_id,
            "component_name": row.component_name,
            "component_data": row.component_data,
        },
    )
    return SessionRow(*adopted[0]) if adopted else stored


@unit
def update(
    session_id: str, visibility: Visibility, changes: Mapping[str, str | None], now: int
) -> Steps[SessionRow | None]:
    """Replace some of `session_name`, `session_state` and `metadata` (JSON texts, or None).

    Returns:
        The session as it is now, or None when there is none that is visible. Without changes it is
        left as it is, `updated_at` included.
    """
    if not changes:
        return (yield from get(session_id, visibility))
    values: dict[str, Value] = {"session_id": session_id, "now": now, **changes}
    sql = _UPDATES[tuple(sorted(changes))]
    rows = yield Statement(sql, {**values, **visibility.parameters()})
    if not rows:
        return None
    if "session_name" in changes:
        yield Statement(_COUNT_REMOVALS, {"sessions": 1, "runs": 0})
    return SessionRow(*rows[0])


@unit
def delete(session_id: str) -> Steps[bool]:
    """Remove a session with its runs and their events; False when there is none.

    Who must not remove a live run holds the session before looking for one.
    """
    yield Statement(_DELETE_RUNS, {"session_id": session_id})
    rows = yield Statement(_DELETE, {"session_id": session_id})
    for (run_count,) in rows:
        yield Statement(_COUNT_REMOVALS, {"sessions": 1, "runs": run_count})
    return bool(rows)


@unit
def allocate_seq(
    session_id: str, now: int, last_status: str | None, session_name: str | None = None
) -> Steps[int | None]:
    """The number of the session's next run, from 1; locks the session's row.

    Args:
        last_status: state of the new run; None leaves the session's as it is (a member's run).
        session_name: the name that the session gets when it has none.

    Returns:
        The number, or None when there is no such session.
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
    session_id: str, delta: Mapping[str, int], history_bytes: int, now: int
) -> Steps[None]:
    """Add what a run used to the session's counters; nothing happens when the session is gone.

    Args:
        delta: tokens of the run itself, of the nine counters; its children add their own.
        history_bytes: bytes of UTF-8 that it adds to what `runs.histories` reads.
    """
    rows = yield Statement(
        _COUNT_BYTES, {"session_id": session_id, "history_bytes": history_bytes, "now": now}
    )
    if not rows or not any(delta.values()):
        return
    metrics, total = add_counters(rows[0][0], delta)
    yield Statement(
        _WRITE_USAGE, {"session_id": session_id, "metrics": metrics, "total_tokens": total}
    )


@unit
def set_last_status(session_id: str, seq: int, status: str) -> Steps[None]:
    """Note the state of a top-level run, unless a newer one has been created."""
    values: dict[str, Value] = {"session_id": session_id, "seq": seq, "last_status": status}
    if (yield Statement(_NEWEST_STATUS, values)):
        return
    yield Statement(_LOCK, {"session_id": session_id})
    yield Statement(_LAST_STATUS, values)
