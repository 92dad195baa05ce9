"""The list of runs across sessions."""

from __future__ import annotations

from agentctl.store.database import Steps, Value, unit
from agentctl.store.listing import Filter, Lead, Listed, Listing, Slice, given
from agentctl.store.run_reads import COLUMNS
from agentctl.store.run_rows import RunQuery, RunRow
from agentctl.store.totals import Totals
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

_CREATED = ("created_at",)
_STATUS = Lead(("status",), _CREATED)

LISTING = Listing(
    table="runs",
    columns=COLUMNS,
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
def page(query: RunQuery, known: Totals | None = None) -> Steps[RunList]:
    """One page of the runs that are visible, and how many there are.

    Args:
        known: what is known of the database (`totals.totals_of`).
    """
    filters = query.visibility.filters()
    filters |= given(query, (*LISTING.free, "status"))
    if query.live:
        filters["live"] = None
    if bounds := given(query, _EVER):
        filters |= _EVER | bounds
    part = Slice("created_at", query.sort_order, query.limit, query.offset, query.after)
    # Runs leave these lists without being removed.
    if query.live or query.status in ("PENDING", "RUNNING"):
        return (yield from LISTING.page(filters, part, RunRow, _STATUS))
    return (yield from LISTING.page(filters, part, RunRow, known=known))
