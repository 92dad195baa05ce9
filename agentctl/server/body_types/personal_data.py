"""Bodies of the operations on the data of a person."""

from __future__ import annotations

from typing import Annotated, Required

from typing_extensions import TypedDict

from agentctl.interface.requests import MAXIMUM_USER_ID_LENGTH
from agentctl.interface.requests.personal_data import Vacuum
from agentctl.server.bodies import Field


class EraseBody(TypedDict, total=False):
    """One part of an erasure."""

    user_id: Required[
        Annotated[
            str, Field(min_length=1, max_length=MAXIMUM_USER_ID_LENGTH, description="The user")
        ]
    ]
    cancel: Annotated[
        bool,
        Field(
            description="Cancel live and paused runs; otherwise they are a conflict", default=False
        ),
    ]
    vacuum: Annotated[
        Vacuum,
        Field(
            description="Rewrite a SQLite file at the end: `auto` unless it is large",
            default="auto",
        ),
    ]
    cursor: Annotated[str | None, Field(description="`next_cursor` of the previous part")]
