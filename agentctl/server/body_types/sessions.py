"""Bodies of the operations on sessions."""

from __future__ import annotations

from typing import Annotated, Required

from typing_extensions import TypedDict

from agentctl.interface.requests import MAXIMUM_DELETED_SESSIONS, MAXIMUM_REASON_LENGTH
from agentctl.interface.requests.retention import MAXIMUM_IDLE_DAYS, MAXIMUM_PRUNED
from agentctl.records.ids import SESSION_ID
from agentctl.server.bodies import Field, Object


class NewSessionBody(TypedDict, total=False):
    """A session to create. The id of its component is in the field of its type."""

    session_id: Annotated[
        str | None, Field(pattern=SESSION_ID, description="Id of the session; by default a new one")
    ]
    session_name: Annotated[str | None, Field(description="Name of the session")]
    session_state: Annotated[Object, Field(description="State of the session")]
    metadata: Annotated[Object, Field(description="Metadata")]
    user_id: Annotated[
        str | None, Field(min_length=1, description="Owner of the session; administrators only")
    ]
    agent_id: Annotated[str | None, Field(description="Id of the agent, for type=agent")]
    team_id: Annotated[str | None, Field(description="Id of the team, for type=team")]
    workflow_id: Annotated[str | None, Field(description="Id of the workflow, for type=workflow")]


class UpdateSessionBody(TypedDict, total=False):
    """New values for a session. Each given value replaces the whole stored value."""

    session_name: Annotated[str, Field(description="Name of the session")]
    session_state: Annotated[Object, Field(description="State of the session")]
    metadata: Annotated[Object, Field(description="Metadata")]


class RenameSessionBody(TypedDict):
    """A new name for a session."""

    session_name: Annotated[str, Field(description="Name of the session")]


class DeleteSessionsBody(TypedDict, total=False):
    """Sessions to delete in one transaction: all or none."""

    session_ids: Required[
        Annotated[
            list[str],
            Field(
                min_length=1, max_length=MAXIMUM_DELETED_SESSIONS, description="Ids of the sessions"
            ),
        ]
    ]


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
