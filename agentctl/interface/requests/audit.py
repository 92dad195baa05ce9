"""Requests of the operations on the audit log; see `agentctl.interface.requests`."""

from __future__ import annotations

from typing import Annotated

from agentctl.interface.declarations import Option, Query
from agentctl.interface.requests import CURSOR_OPTION, DEFAULT_LIMIT, Limit, PageCursor
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import AuditOutcome
from agentctl.records.times import ParsedTimestamp


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """The filter of a list of audit entries, newest first.

    A principal is `sub`, `sa:<id>` or `local:<user>`. `since` is microseconds UTC.
    """

    principal: Annotated[
        str | None,
        Query("Only calls of this principal"),
        Option("--principal", "NAME", "Filter by caller"),
    ] = None
    operation: Annotated[
        str | None,
        Query("Only this operation; `authenticate` selects the counted 401s"),
        Option("--operation", "ID", "Filter by operation, such as cancel_agent_run"),
    ] = None
    outcome: Annotated[
        AuditOutcome | None,
        Query("Only calls with this outcome"),
        Option("--outcome", "OUTCOME", "Filter by outcome: allowed, denied or failed"),
    ] = None
    since: Annotated[
        ParsedTimestamp | None,
        Query("Only entries from this time on"),
        Option("--since", "AGE", "Filter by age: 10m, 2h, 7d, or a time in RFC 3339"),
    ] = None
    limit: Limit = DEFAULT_LIMIT
    cursor: Annotated[PageCursor, CURSOR_OPTION] = None


@dataclass(frozen=True, slots=True)
class AuditHeadFilter:
    """A page of the signed heads of the audit log, newest first."""

    limit: Limit = DEFAULT_LIMIT
    cursor: Annotated[PageCursor, CURSOR_OPTION] = None
