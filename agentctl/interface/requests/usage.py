"""Requests of the operations on usage; see `agentctl.interface.requests`."""

from __future__ import annotations

from typing import Annotated, Literal

from agentctl.interface.declarations import Option, Query
from agentctl.interface.requests import ComponentId, DatabaseId, UserId
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import ComponentKind
from agentctl.records.times import ParsedTimestamp
from agentctl.records.usage import Step, UsageKey

MAXIMUM_GROUPS = 1_000
"""Groups of one response."""

_Since = Annotated[
    ParsedTimestamp | None,
    Query("Only runs that ended since then; the beginning of its day or hour counts"),
    Option("--since", "AGE", "Filter by age: 10m, 2h, 7d, or a time in RFC 3339"),
]
_Before = Annotated[
    ParsedTimestamp | None,
    Query("Only runs that ended before; the end of its day or hour counts. By default now"),
    Option("--before", "AGE", "Filter by age: 10m, 2h, 7d, or a time in RFC 3339"),
]
_Type = Annotated[
    ComponentKind | None,
    Query("Only runs of this kind of component"),
    Option("--type", "TYPE", "Filter by component type: agent, team or workflow"),
]
_Component = Annotated[
    ComponentId, Option("--component", "ID", "Filter by component id, of any type")
]
_Model = Annotated[
    str | None,
    Query("Only of this model: its id in the configuration, or the name that a library reports"),
    Option("--model", "ID", "Filter by model"),
]
_Version = Annotated[
    str | None,
    Query("Only runs of this version of their component, of all users"),
    Option("--version", "VERSION", "Filter by version of the component"),
]
_Limit = Annotated[
    int,
    Query("Maximum number of groups, the largest ones", ge=1, le=MAXIMUM_GROUPS),
    Option("--limit", "NUMBER", "Maximum number of groups, the largest ones"),
]


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """The runs whose usage is summed. Times are microseconds UTC."""

    by: Annotated[
        tuple[UsageKey, ...],
        Query(
            "Groups: any of `day`, `user`, `component`, `model` and `version`, separated by commas"
        ),
    ] = ("day",)
    since: _Since = None
    before: _Before = None
    component_type: _Type = None
    component_id: _Component = None
    model: _Model = None
    user_id: UserId = None
    db_id: DatabaseId = None
    limit: _Limit = 100
    version: _Version = None


@dataclass(frozen=True, slots=True)
class OverviewFilter:
    """The runs of an overview. Times are microseconds UTC."""

    step: Annotated[Step, Query("`hour`: by default of the last day; `day`: of 30 days")] = "hour"
    by: Annotated[
        Literal["user", "component", "model", "version"], Query("What the groups have in common")
    ] = "component"
    since: _Since = None
    before: _Before = None
    component_type: _Type = None
    component_id: _Component = None
    model: _Model = None
    user_id: UserId = None
    db_id: DatabaseId = None
    limit: _Limit = 20
    version: _Version = None
