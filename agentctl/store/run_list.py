"""The list of runs across sessions."""

from __future__ import annotations

from collections.abc import Iterable

from agentctl.store.database import Steps, Value, unit
from agentctl.store.listing import Filter, Listed, Listing, Slice
from agentctl.store.run_reads import COLUMNS
from agentctl.store.run_rows import RunQuery, RunRow
from agentctl.store.visibility import OWNER_FILTERS

__all__ = ["LISTING", "RunList", "page"]

RunList = Listed[RunRow]

# By its own name, because it leads as `status` does not: for two states no index is in order.
_LIVE = Filter("runs.status", "IN ('PENDING', 'RUNNING')")

_RANGE = {
    "created_after": Filter("created_at", ">= :created_after"),
    "created_before": Filter("created_at", "< :created_before"),
}

_EVER: dict[str, Value] = {"created_after": 0, "created_before": 2**63 - 1}
"""Bounds of all times: one that is not given is there all the same, to have fewer statements."""

LISTING = Listing(
    table="runs",
    columns=COLUMNS,
    id="run_id",
    sorts=("created_at",),
    free={
        name: Filter(name, f"= :{name}")
        for name in ("session_id", "user_id", "component_id", "component_type")
    },
    choices=(
        OWNER_FILTERS,
        ({}, {"status": Filter("status", "= :status")}, {"live": _LIVE}),
        ({}, _RANGE),
    ),
    # Few runs are live at a time, whatever else is asked for.
    leads=("runs.status", "session_id", "user_id", "component_id", "status", "component_type"),
    unordered="runs.status",
    promoted=("status",),
)


@unit
def page(query: RunQuery) -> Steps[RunList]:
    """One page of the runs that are visible, and how many there are."""
    filters = query.visibility.filters()
    filters |= _given(query, (*LISTING.free, "status"))
    if query.live:
        filters["live"] = None
    if bounds := _given(query, _EVER):
        filters |= _EVER | bounds
    part = Slice("created_at", query.sort_order, query.limit, query.offset, query.after)
    promote = "status" if query.status in ("PENDING", "RUNNING") else ""
    return (yield from LISTING.page(filters, part, RunRow, promote))


def _given(query: RunQuery, names: Iterable[str]) -> dict[str, Value]:
    values: dict[str, Value] = {name: getattr(query, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
