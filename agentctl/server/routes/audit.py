"""The audit: who did what, and what was refused to whom."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from agentctl.operations import DEFAULT_LIMIT, AuditFilter
from agentctl.records.audit import AuditOutcome, AuditPage
from agentctl.records.times import ParsedTimestamp
from agentctl.server.answers import document_response
from agentctl.server.routes.declared import Limit
from agentctl.server.routes.declared import build_operation as route
from agentctl.server.routing import Operation
from agentctl.server.state import Call

__all__ = ["build_operations", "get_audit"]


async def get_audit(
    call: Call,
    principal: Annotated[str | None, Query(description="Only what this principal called")] = None,
    operation: Annotated[
        str | None, Query(description="Only this operation; `authenticate` for counted 401s")
    ] = None,
    outcome: Annotated[
        AuditOutcome | None, Query(description="Only what was allowed, was denied, or failed")
    ] = None,
    since: Annotated[
        ParsedTimestamp | None, Query(description="Only rows from then or later")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Annotated[
        str | None, Query(description="`meta.next_cursor` of the page before")
    ] = None,
) -> Response:
    """List the audit.

    The rows of all principals, newest first. Every change has one, and every call of an identified
    caller that was denied; calls without a valid credential are counted by cause.
    """
    wanted = AuditFilter(principal, operation, outcome, since, limit, cursor)
    return document_response(await call.operations.get_audit(wanted))


def build_operations() -> list[Operation]:
    """The routes."""
    return [route(get_audit, tag="Authorization", answers=AuditPage)]
