"""Runs as they are read: one by one, of a session, of a worker. Lists are in `run_list`.

The list of runs across sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from agentctl.store.database import Sql, Statement, Steps, Value, unit
from agentctl.store.listing import Filter, Lead, Listing, RowPage, Slice, present_filters
from agentctl.store.repositories.run_rows import RunQuery, RunRow, RunState
from agentctl.store.totals import Totals
from agentctl.store.visibility import EVERYONE, IS_VISIBLE, OWNER_FILTERS, Visibility

__all__ = [
    "IS_LIVE",
    "LISTING",
    "RUN_COLUMNS",
    "RunRowPage",
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
]

RUN_COLUMNS = ", ".join(field.name for field in fields(RunRow))
"""Those of a RunRow, in its order."""

IS_LIVE = "status IN ('PENDING', 'RUNNING')"
"""The condition that a run has not ended; there are indexes of such runs alone."""

_STATE = ", ".join(field.name for field in fields(RunState))

_GET = Sql(f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = :run_id AND {IS_VISIBLE}")
_HOLD = Sql(f"SELECT {RUN_COLUMNS} FROM runs WHERE run_id = :run_id FOR UPDATE")
_GET_STATE = Sql(f"SELECT {_STATE} FROM runs WHERE run_id = :run_id AND {IS_VISIBLE}")

_OF_SESSION = Sql(
    f"SELECT {RUN_COLUMNS} FROM runs WHERE session_id = :session_id AND seq > :after_seq"
    " ORDER BY seq LIMIT :limit"
)

_HISTORIES = Sql(
    "SELECT substr(utf8(history), 2, length(utf8(history)) - 2) FROM runs"
    " WHERE session_id = :session_id AND parent_run_id IS NULL AND history IS NOT NULL ORDER BY seq"
)

_RECENT_MESSAGES = Sql(
    "SELECT messages FROM runs WHERE session_id = :session_id AND parent_run_id IS NULL"
    " AND finished_at IS NOT NULL AND messages IS NOT NULL ORDER BY seq DESC LIMIT :limit"
)

_LIVE_IN_SESSION = Sql(
    f"SELECT run_id FROM runs WHERE session_id = :session_id AND {IS_LIVE} ORDER BY seq"
)

_CANCEL_REQUESTS = Sql(
    f"SELECT {_STATE} FROM runs WHERE owner = :owner AND {IS_LIVE}"
    " AND cancel_requested_at IS NOT NULL ORDER BY cancel_requested_at"
)

_LIVE_OWNERS = Sql(f"SELECT DISTINCT owner FROM runs WHERE {IS_LIVE}")

# A child is created after its parent, in the same session.
_CHILDREN_FIRST = "ORDER BY session_id, seq DESC"

_LIVE_OF = Sql(
    f"SELECT {RUN_COLUMNS} FROM runs WHERE owner = :owner AND {IS_LIVE} {_CHILDREN_FIRST}"
)

_LIVE_OF_NOBODY = Sql(
    f"SELECT {RUN_COLUMNS} FROM runs WHERE owner IS NULL AND {IS_LIVE} {_CHILDREN_FIRST}"
)

_PARENTS = 20
"""Parents in one statement of `children`; a last group that is smaller is filled with null."""

_CHILDREN = Sql(
    "SELECT parent_run_id, run_id FROM runs WHERE parent_run_id IN"
    f" ({', '.join(f':parent_{number}' for number in range(_PARENTS))})"
    " ORDER BY parent_run_id, seq"
)

_NO_LIMIT = 2**63 - 1


@unit
def get(run_id: str, visibility: Visibility) -> Steps[RunRow | None]:
    """The run, or None when there is none that is visible."""
    rows = yield Statement(_GET, {"run_id": run_id, **visibility.parameters()})
    return RunRow(*rows[0]) if rows else None


@unit
def get_for_update(run_id: str) -> Steps[RunRow | None]:
    """The run, which nobody else changes before the transaction ends; None when there is none."""
    rows = yield Statement(_HOLD, {"run_id": run_id})
    return RunRow(*rows[0]) if rows else None


@unit
def get_state(run_id: str, visibility: Visibility = EVERYONE) -> Steps[RunState | None]:
    """Where the run stands, or None when there is none that is visible."""
    rows = yield Statement(_GET_STATE, {"run_id": run_id, **visibility.parameters()})
    return RunState(*rows[0]) if rows else None


@unit
def list_children(run_ids: Sequence[str]) -> Steps[dict[str, list[str]]]:
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


@unit
def list_in_session(
    session_id: str, *, limit: int | None = None, after_seq: int | None = None
) -> Steps[list[RunRow]]:
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


@unit
def list_histories(session_id: str) -> Steps[list[bytes]]:
    """What the session's top-level runs show in `chat_history`, in order: of each the JSON array,
    in UTF-8 and without its brackets, so that all of them can be one without another copy.
    """
    rows = yield Statement(_HISTORIES, {"session_id": session_id})
    return [history for (history,) in rows]


@unit
def list_recent_messages(session_id: str, limit: int) -> Steps[list[str]]:
    """The messages of the last `limit` top-level runs that have ended, oldest first: JSON arrays.

    What it costs does not depend on the number of runs.
    """
    rows = yield Statement(_RECENT_MESSAGES, {"session_id": session_id, "limit": limit})
    return [messages for (messages,) in reversed(rows)]


@unit
def list_live_in_session(session_id: str) -> Steps[list[str]]:
    """Ids of the session's runs that have not ended, oldest first."""
    rows = yield Statement(_LIVE_IN_SESSION, {"session_id": session_id})
    return [run_id for (run_id,) in rows]


@unit
def list_cancel_requests(owner: str) -> Steps[list[RunState]]:
    """The runs that a worker has to stop: claimed by it, asked to stop, not ended."""
    rows = yield Statement(_CANCEL_REQUESTS, {"owner": owner})
    return [RunState(*row) for row in rows]


@unit
def list_live_owners() -> Steps[list[str | None]]:
    """The workers that runs which have not ended name as theirs, each once; None: nobody."""
    rows = yield Statement(_LIVE_OWNERS)
    return [owner for (owner,) in rows]


@unit
def list_live_of_worker(owner: str | None) -> Steps[list[RunRow]]:
    """The runs of a worker, or of nobody, that have not ended: children before their parents."""
    if owner is None:
        rows = yield Statement(_LIVE_OF_NOBODY)
    else:
        rows = yield Statement(_LIVE_OF, {"owner": owner})
    return [RunRow(*row) for row in rows]


RunRowPage = RowPage[RunRow]

# By its own name, because it leads as `status` does not: for two states no index is in order.
_LIVE = Filter("runs.status", "IN ('PENDING', 'RUNNING')")

_RANGE = {
    "created_after": Filter("created_at", ">= :created_after"),
    "created_before": Filter("created_at", "< :created_before"),
}

_EVER: dict[str, Value] = {"created_after": 0, "created_before": 2**63 - 1}
"""Bounds of all times: one that is not given is there all the same, to have fewer statements."""

_CREATED = ("created_at",)
_STATUS = Lead(("status",), _CREATED)

LISTING = Listing(
    table="runs",
    columns=RUN_COLUMNS,
    id="run_id",
    sorts=_CREATED,
    free={
        name: Filter(name, f"= :{name}")
        for name in ("session_id", "user_id", "component_id", "component_type")
    },
    choices=(
        OWNER_FILTERS,
        ({}, {"status": Filter("status", "= :status")}, {"live": _LIVE}),
        ({}, _RANGE),
    ),
    leads=(
        # Few runs are live at a time, whatever else is asked for.
        Lead(("runs.status",)),
        *(Lead((compared,), _CREATED) for compared in ("session_id", "user_id", "component_id")),
        _STATUS,
        Lead(("component_type",), _CREATED),
    ),
    promoted=(_STATUS,),
    removals="runs",
)


@unit
def list_page(query: RunQuery, known: Totals | None = None) -> Steps[RunRowPage]:
    """One page of the runs that are visible, and how many there are.

    Args:
        known: what is known of the database (`totals.totals_of`).
    """
    filters = query.visibility.filters()
    filters |= present_filters(query, (*LISTING.free, "status"))
    if query.live:
        filters["live"] = None
    if bounds := present_filters(query, _EVER):
        filters |= _EVER | bounds
    part = Slice("created_at", query.sort_order, query.limit, query.offset, query.after)
    # Runs leave these lists without being removed.
    if query.live or query.status in ("PENDING", "RUNNING"):
        return (yield from LISTING.page(filters, part, RunRow, _STATUS))
    return (yield from LISTING.page(filters, part, RunRow, known=known))
