"""The list of sessions."""

from __future__ import annotations

from dataclasses import fields

from agentctl.store.database import Steps, Value, unit
from agentctl.store.listing import Filter, Lead, Listed, Listing, Slice, given, prefix_range
from agentctl.store.session_rows import SessionQuery, SummaryRow
from agentctl.store.totals import Totals
from agentctl.store.visibility import OWNER_FILTERS

__all__ = ["LISTING", "SessionList", "page"]

SessionList = Listed[SummaryRow]

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
def page(query: SessionQuery, known: Totals | None = None) -> Steps[SessionList]:
    """One page of the sessions that are visible, and how many there are.

    Args:
        known: what is known of the database (`totals.totals_of`).
    """
    part = Slice(query.sort_by, query.sort_order, query.limit, query.offset, query.after)
    return (yield from LISTING.page(_filters(query), part, SummaryRow, known=known))


def _filters(query: SessionQuery) -> dict[str, Value]:
    filters = query.visibility.filters() | given(query, LISTING.free)
    if query.name_prefix:
        start, end = prefix_range(query.name_prefix)
        filters["name_from"] = start
        if end is not None:
            filters["name_to"] = end
            if len(start) >= _START_LENGTH:
                filters["name_start"] = start[:_START_LENGTH]
    return filters
