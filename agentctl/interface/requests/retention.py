"""Requests of the operations on the retention of sessions; see `agentctl.interface.requests`."""

from __future__ import annotations

from typing import Annotated

from agentctl.interface.declarations import Query
from agentctl.interface.requests import MAXIMUM_LIMIT, ComponentId, DatabaseId, Limit, PageCursor
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import ComponentKind

MAXIMUM_IDLE_DAYS = 36_500

MAXIMUM_PRUNED = 100
"""Sessions of one removal, which other writers wait for."""

PRUNE_WAIT = 60.0
"""Maximum seconds of one removal, in addition to those of other requests."""


@dataclass(frozen=True, slots=True)
class IdleFilter:
    """A page of the sessions that were not used for some days, at least one."""

    idle_days: Annotated[
        int,
        Query(
            "Only sessions that were not used for this number of days", ge=1, le=MAXIMUM_IDLE_DAYS
        ),
    ] = 90
    component_type: Annotated[ComponentKind | None, Query("Only sessions of this type")] = None
    component_id: ComponentId = None
    db_id: DatabaseId = None
    limit: Limit = MAXIMUM_LIMIT
    cursor: PageCursor = None


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """Sessions to remove if they were not used for some days; at most `MAXIMUM_PRUNED`."""

    idle_days: int
    session_ids: tuple[str, ...]
    db_id: DatabaseId = None
