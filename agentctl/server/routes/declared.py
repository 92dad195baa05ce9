"""Parameters that several operations declare, and the body of requests about a session."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from typing_extensions import TypeAliasType

from agentctl.errors import BadRequest, UnsupportedMediaType
from agentctl.requests import (
    MAXIMUM_CUT,
    MAXIMUM_LIMIT,
    MINIMUM_ID_PREFIX,
    SessionLocator,
    ViewName,
)
from agentctl.server.bodies import RequestBody
from agentctl.server.parameters import Path, Query
from agentctl.server.state import Call

SessionType = TypeAliasType("SessionType", Literal["agent", "team", "workflow"])
"""An enumeration of the OpenAPI document, with the values of `records.kinds.ComponentKind`."""

SessionId = Annotated[str, Path("Id of the session")]
RunId = Annotated[str, Path("Id of the run")]
TypeQuery = Annotated[
    SessionType | None, Query("Type of the session; by default that of the stored session")
]
UserId = Annotated[
    str | None, Query("Only data of this user, within the data that the caller can see")
]
DatabaseId = Annotated[str | None, Query("Id of the database; by default the first one")]
Table = Annotated[str | None, Query("`sessions`, the only table")]
ComponentId = Annotated[str | None, Query("Only of this agent, team or workflow")]
Limit = Annotated[int, Query("Maximum number of results", ge=1, le=MAXIMUM_LIMIT)]
PageNumber = Annotated[int, Query("Page number; after row 10,000 use `cursor`", ge=1)]
AfterCursor = Annotated[
    str | None,
    Query("`meta.next_cursor` of the previous page; takes precedence over `page`", min_length=1),
]
IdPrefix = Annotated[
    str | None,
    Query("Only those whose id begins with this text", min_length=MINIMUM_ID_PREFIX),
]
ViewQuery = Annotated[
    ViewName,
    Query(
        "`summary` leaves out the content, the messages and the tool calls, `phase` adds the state"
        " in words to it, and `items` has the ordered items of the run instead of them"
    ),
]
CutQuery = Annotated[
    int | None,
    Query(
        "Characters after which messages and results of tools are cut; by default they are whole",
        ge=1,
        le=MAXIMUM_CUT,
    ),
]
SortOrder = Annotated[Literal["asc", "desc"], Query("Oldest first or newest first")]


async def read_session_body(
    call: Call, body: RequestBody, session_id: str, where: SessionLocator
) -> dict[str, Any]:
    """Return the body of a request about a session; report a missing session first.

    Raises:
        NotFound: the body is not valid, and the caller cannot see the session either.
        AgentctlError: the body is not valid.
    """
    try:
        return await body.read(call)
    except (BadRequest, UnsupportedMediaType):
        await call.operations.require_session(session_id, where)
        raise
