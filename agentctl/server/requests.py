"""The bodies that operations read, as types: from them come both the checks and the OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import Field
from typing_extensions import TypedDict

from agentctl.operations import (
    BEFORE_FIRST_EVENT,
    DEFAULT_ACCOUNT_DAYS,
    MAXIMUM_ACCOUNT_DAYS,
    MAXIMUM_DELETED_SESSIONS,
    MAXIMUM_EVENT_NUMBER,
    MAXIMUM_SCOPES,
)
from agentctl.records.accounts import ACCOUNT_NAME
from agentctl.records.ids import SESSION_ID

__all__ = [
    "DeleteSessionsBody",
    "ExplainBody",
    "GrantBody",
    "NewAccountBody",
    "NewSessionBody",
    "RenameSessionBody",
    "ResumeBody",
    "RunBody",
    "UpdateSessionBody",
]


class RunBody(TypedDict):
    """A run to start."""

    message: Required[Annotated[str, Field(min_length=1, description="What to do")]]
    stream: NotRequired[
        Annotated[bool, Field(description="Answer with server-sent events", default=True)]
    ]
    background: NotRequired[
        Annotated[
            bool,
            Field(description="Go on when the client goes away", default=False),
        ]
    ]
    session_id: NotRequired[
        Annotated[
            str | None,
            Field(pattern=SESSION_ID, description="Session to run in; one is made when absent"),
        ]
    ]
    user_id: NotRequired[
        Annotated[
            str | None,
            Field(min_length=1, description="Owner of the run; honoured for administrators only"),
        ]
    ]


class ResumeBody(TypedDict):
    """Where to go on following a run; each of them may as well be a query parameter."""

    last_event_index: NotRequired[
        Annotated[
            int | None,
            Field(
                ge=BEFORE_FIRST_EVENT,
                le=MAXIMUM_EVENT_NUMBER,
                description="Number of the last event that came; the whole stream when absent",
            ),
        ]
    ]
    session_id: NotRequired[Annotated[str | None, Field(description="The session of the run")]]


class NewSessionBody(TypedDict):
    """A session to create. The id of its component is in the field that its type names."""

    session_id: NotRequired[
        Annotated[
            str | None, Field(pattern=SESSION_ID, description="Its id; one is made when absent")
        ]
    ]
    session_name: NotRequired[Annotated[str | None, Field(description="A name for people")]]
    session_state: NotRequired[Annotated[dict[str, Any] | None, Field(description="Its state")]]
    metadata: NotRequired[Annotated[dict[str, Any] | None, Field(description="Metadata")]]
    user_id: NotRequired[
        Annotated[
            str | None, Field(min_length=1, description="Owner; honoured for administrators only")
        ]
    ]
    agent_id: NotRequired[Annotated[str | None, Field(description="Agent, for type=agent")]]
    team_id: NotRequired[Annotated[str | None, Field(description="Team, for type=team")]]
    workflow_id: NotRequired[
        Annotated[str | None, Field(description="Workflow, for type=workflow")]
    ]


class UpdateSessionBody(TypedDict):
    """New values for a session; each given one replaces the whole value."""

    session_name: NotRequired[Annotated[str, Field(description="A name for people")]]
    session_state: NotRequired[Annotated[dict[str, Any] | None, Field(description="Its state")]]
    metadata: NotRequired[Annotated[dict[str, Any] | None, Field(description="Metadata")]]


class RenameSessionBody(TypedDict):
    """A new name for a session."""

    session_name: Required[Annotated[str, Field(description="A name for people")]]


class DeleteSessionsBody(TypedDict):
    """Sessions to delete together: all or none."""

    session_ids: Required[
        Annotated[
            list[str],
            Field(min_length=1, max_length=MAXIMUM_DELETED_SESSIONS, description="Their ids"),
        ]
    ]


class ExplainBody(TypedDict):
    """A request to explain."""

    method: Required[Annotated[str, Field(description="HTTP method")]]
    path: Required[
        Annotated[str, Field(description="As it would be asked for, with a query or without")]
    ]
    token: NotRequired[
        Annotated[
            str | None,
            Field(
                description="The token that it would be made with, or an empty text for none; "
                "the caller's own when absent. It is not kept."
            ),
        ]
    ]


class GrantBody(TypedDict):
    """A scope for a service account."""

    scope: Required[Annotated[str, Field(description="The scope")]]
    effect: NotRequired[
        Annotated[Literal["allow"], Field(description="Nothing else yet", default="allow")]
    ]


class NewAccountBody(TypedDict):
    """A service account to create."""

    name: Required[
        Annotated[
            str,
            Field(pattern=ACCOUNT_NAME, description="No other account that is active has it"),
        ]
    ]
    scopes: Required[
        Annotated[
            list[GrantBody],
            Field(
                min_length=1,
                max_length=MAXIMUM_SCOPES,
                description="Of those that the caller holds",
            ),
        ]
    ]
    expires_in_days: NotRequired[
        Annotated[
            int | None,
            Field(
                ge=1,
                le=MAXIMUM_ACCOUNT_DAYS,
                description=f"How long it is good for; {DEFAULT_ACCOUNT_DAYS} when absent",
            ),
        ]
    ]
    never_expires: NotRequired[
        Annotated[bool, Field(description="Not together with `expires_in_days`", default=False)]
    ]
    allow_privileged_scopes: NotRequired[
        Annotated[
            bool,
            Field(
                description="Needed for scopes to write, to delete, to administer and to manage "
                "service accounts",
                default=False,
            ),
        ]
    ]
