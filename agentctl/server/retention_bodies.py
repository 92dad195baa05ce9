"""Bodies of the operations on the retention of sessions."""

from __future__ import annotations

from typing import Annotated

from typing_extensions import TypedDict

from agentctl.requests import MAXIMUM_REASON_LENGTH
from agentctl.requests.retention import MAXIMUM_IDLE_DAYS, MAXIMUM_PRUNED
from agentctl.server.bodies import Field


class HoldSessionBody(TypedDict):
    """A hold of a session."""

    reason: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAXIMUM_REASON_LENGTH,
            description="Reason, shown to administrators",
        ),
    ]


class PruneBody(TypedDict):
    """Sessions to remove if they are still idle."""

    idle_days: Annotated[
        int,
        Field(
            ge=1,
            le=MAXIMUM_IDLE_DAYS,
            description="Only sessions that were not used for this number of days are removed",
        ),
    ]
    session_ids: Annotated[
        list[str], Field(min_length=1, max_length=MAXIMUM_PRUNED, description="Ids of the sessions")
    ]
