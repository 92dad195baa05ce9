"""The operation that lists the audit log."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from agentctl.records.audit import AuditOutcome, AuditPage
from agentctl.records.times import ParsedTimestamp
from agentctl.requests import (
    DEFAULT_LIMIT,
    AuditFilter,
)
from agentctl.server.answers import document_response
from agentctl.server.parameters import Query
from agentctl.server.routes.declared import Limit
from agentctl.server.routing import Operation
from agentctl.server.state import Call


async def get_audit(
    call: Call,
    principal: Annotated[str | None, Query("Only calls of this principal")] = None,
    operation: Annotated[
        str | None, Query("Only this operation; `authenticate` selects the counted 401s")
    ] = None,
    outcome: Annotated[AuditOutcome | None, Query("Only calls with this outcome")] = None,
    since: Annotated[ParsedTimestamp | None, Query("Only entries from this time on")] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Annotated[
        str | None, Query("`meta.next_cursor` of the previous page", min_length=1)
    ] = None,
) -> Response:
    """List audit entries.

    The entries of all principals, newest first. There is one for every change and for every denied
    call of an identified caller; calls without a valid credential are counted by cause.
    """
    wanted = AuditFilter(principal, operation, outcome, since, limit, cursor)
    return document_response(await call.operations.get_audit(wanted))


def build_operations() -> list[Operation]:
    """Return the operations on the audit log."""
    return [Operation(get_audit, tag="Authorization", result=AuditPage)]
