"""The list of runs across sessions."""

from __future__ import annotations

from agentctl.store.database import Work
from agentctl.store.listing import Filter, Listed, Listing, Slice
from agentctl.store.run_reads import COLUMNS
from agentctl.store.run_rows import RunQuery, RunRow
from agentctl.store.visibility import OWNER_FILTERS

__all__ = ["LISTING", "RunList", "page"]

RunList = Listed[RunRow]

LISTING = Listing(
    table="runs",
    columns=COLUMNS,
    id="run_id",
    sorts=("created_at",),
    free={
        name: Filter(name, f"= :{name}")
        for name in ("session_id", "user_id", "component_id", "status", "component_type")
    },
    choices=(OWNER_FILTERS,),
    leads=("session_id", "user_id", "component_id", "status", "component_type"),
    promoted=("status",),
)


def page(query: RunQuery) -> Work[RunList]:
    """One page of the runs that are visible, and how many there are."""
    filters = query.visibility.filters()
    for name in LISTING.free:
        value = getattr(query, name)
        if value is not None:
            filters[name] = value
    part = Slice("created_at", query.sort_order, query.limit, query.offset, query.after)
    # Few runs are live at a time, whatever else is asked for.
    promote = "status" if query.status in ("PENDING", "RUNNING") else ""
    return (yield from LISTING.page(filters, part, RunRow, promote))
