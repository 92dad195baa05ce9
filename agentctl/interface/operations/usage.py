"""The operations on usage and budgets; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from agentctl.interface.declarations import Family, operation
from agentctl.interface.requests import UserId
from agentctl.interface.requests.administration import OverviewFilter, UsageFilter
from agentctl.interface.requirements import NeedsScope
from agentctl.records.document import Document
from agentctl.records.usage import BudgetRecord, OverviewRecord, UsageReport


class UsageFamily(Family):
    """The operations on tokens, cost, outcomes and budgets."""

    @operation("get_budgets", "GET", "/budgets", needs=NeedsScope("usage", "read"), tag="Usage")
    async def list_budgets(self, *, user_id: UserId = None) -> Document[list[BudgetRecord]]:
        """List budgets.

        The budgets of the configuration in their present periods and their use:
        those per user with the users who have used most, or the caller alone.
        """

    @operation("get_usage", "GET", "/usage", needs=NeedsScope("usage", "read"), tag="Usage")
    async def get(self, filter: UsageFilter) -> Document[UsageReport]:
        """Sum tokens and cost.

        Of the runs that the caller can see and that ended in a period, by day, user, component or
        model. The runs of members and background work are included, and nothing is counted twice.
        """

    @operation(
        "get_usage_overview",
        "GET",
        "/usage/overview",
        needs=NeedsScope("usage", "read"),
        tag="Usage",
    )
    async def get_overview(self, filter: OverviewFilter) -> Document[OverviewRecord]:
        """Get an overview of runs.

        Runs, failures by cause, times, tokens and cost of the runs that the caller can see, by hour
        or day and by component, model or user; and what waits for a person now.
        """
