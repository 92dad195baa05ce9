"""What the declarations of operations have in common: parameters, and the making of a route."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from typing_extensions import TypeAliasType

from agentctl.errors import BadRequest, UnsupportedMediaType
from agentctl.operations import MAXIMUM_LIMIT, SessionLocator
from agentctl.records.routes import ROUTES
from agentctl.server.bodies import RequestBody
from agentctl.server.openapi.document import describe_operation
from agentctl.server.routing import Endpoint, Operation
from agentctl.server.state import Call

__all__ = [
    "AfterCursor",
    "ComponentId",
    "DatabaseId",
    "Limit",
    "PageNumber",
    "RunId",
    "SessionId",
    "SessionType",
    "SortOrder",
    "Table",
    "UserId",
    "build_operation",
    "declare_parameters",
    "read_session_body",
]

SessionType = TypeAliasType("SessionType", Literal["agent", "team", "workflow"])
"""The enumeration of spec.md "Resources"; the same words as `records.kinds.Kind`."""

SessionId = Annotated[str, Path(description="The session")]
RunId = Annotated[str, Path(description="The run")]
UserId = Annotated[str | None, Query(description="Only what is this user's: narrows, never widens")]
DatabaseId = Annotated[str | None, Query(description="The database; the default one when absent")]
Table = Annotated[str | None, Query(description="`sessions`, the only table, when given")]
ComponentId = Annotated[str | None, Query(description="Only of this agent, team or workflow")]
Limit = Annotated[int, Query(ge=1, le=MAXIMUM_LIMIT, description="How many on a page")]
PageNumber = Annotated[int, Query(ge=1, description="Which page; beyond row 10,000 use `cursor`")]
AfterCursor = Annotated[
    str | None, Query(description="`meta.next_cursor` of the page before; wins over `page`")
]
SortOrder = Annotated[Literal["asc", "desc"], Query(description="Oldest or newest first")]


def build_operation(
    endpoint: Endpoint,
    *,
    tag: str,
    answers: Any,
    status: int = 200,
    errors: tuple[int, ...] = (),
    body: RequestBody | None = None,
    more: dict[int | str, dict[str, Any]] | None = None,
    in_document: bool = True,
) -> Operation:
    """The route of an operation; its id is the endpoint's name, its text the docstring.

    Where it is stands in `records.routes.ROUTES`; one that is not there stops the start.

    Args:
        endpoint: what answers.
        tag: OpenAPI tag.
        answers: type of the document, or None for an answer without one: nothing, or events.
        status: of success.
        errors: statuses that it answers beside those that every operation does.
        body: how its body is read.
        more: further OpenAPI responses.
        in_document: whether the OpenAPI document shows it.
    """
    shown = describe_operation(endpoint, errors=errors, body=body, more=more or {})
    return Operation(
        ROUTES[endpoint.__name__],
        endpoint,
        tags=[tag],
        response_model=answers,
        status_code=status,
        include_in_schema=in_document,
        **(shown if in_document else {}),
    )


def declare_parameters(endpoint: Endpoint, parameters: Sequence[Parameter]) -> Endpoint:
    """The wrapper of an endpoint, declared with these parameters instead of the endpoint's own."""
    endpoint.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    del endpoint.__wrapped__  # type: ignore[attr-defined]
    return endpoint


async def read_session_body(
    call: Call, body: RequestBody, session_id: str, where: SessionLocator
) -> dict[str, Any]:
    """The body of a request about a session: a session that is not found comes first.

    Raises:
        NotFound: the body is refused, and the caller cannot see the session either.
        AgentctlError: the body is refused.
    """
    try:
        return await body.read(call)
    except (BadRequest, UnsupportedMediaType):
        await call.operations.require_session(session_id, where)
        raise
