"""Bodies of the operations on service accounts and on authorization."""

from __future__ import annotations

from typing import Annotated, Literal, Required

from typing_extensions import TypedDict

from agentctl.interface.requests.accounts import (
    DEFAULT_ACCOUNT_DAYS,
    MAXIMUM_ACCOUNT_DAYS,
    MAXIMUM_SCOPES,
)
from agentctl.records.accounts import ACCOUNT_NAME
from agentctl.server.bodies import Field


class ExplainBody(TypedDict, total=False):
    """A request to explain."""

    method: Required[Annotated[str, Field(description="HTTP method")]]
    path: Required[
        Annotated[str, Field(description="Path of the request, with or without a query")]
    ]
    token: Annotated[
        str | None,
        Field(
            description="Token of the request; by default that of the caller, empty for none. "
            "It is not stored."
        ),
    ]


class GrantBody(TypedDict, total=False):
    """A scope for a service account."""

    scope: Required[Annotated[str, Field(description="Scope")]]
    effect: Annotated[Literal["allow"], Field(description="Effect of the grant", default="allow")]


class NewAccountBody(TypedDict, total=False):
    """A service account to create."""

    name: Required[
        Annotated[
            str, Field(pattern=ACCOUNT_NAME, description="Name, unique among the active accounts")
        ]
    ]
    scopes: Required[
        Annotated[
            list[GrantBody],
            Field(
                min_length=1,
                max_length=MAXIMUM_SCOPES,
                description="Scopes; the caller must have each of them",
            ),
        ]
    ]
    expires_in_days: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAXIMUM_ACCOUNT_DAYS,
            description=f"Days until it expires; {DEFAULT_ACCOUNT_DAYS} by default",
        ),
    ]
    never_expires: Annotated[
        bool, Field(description="Never expire; not with `expires_in_days`", default=False)
    ]
    allow_privileged_scopes: Annotated[
        bool,
        Field(
            description="Required for scopes that write, delete, administer or manage service "
            "accounts",
            default=False,
        ),
    ]
