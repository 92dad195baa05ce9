"""The operations on budgets (docs/contract.md "Budgets")."""

from __future__ import annotations

from collections.abc import Mapping

from agentctl.auth.principal import Principal
from agentctl.config.upkeep import Budget
from agentctl.records.document import Document, build_document
from agentctl.records.times import format_rfc3339
from agentctl.records.usage import BudgetRecord
from agentctl.records.validation import check_texts
from agentctl.runs.life.admission import Submission
from agentctl.runs.life.budgets import Period, build_scope, find_limit, find_period, measure
from agentctl.service.family import OperationFamily, find_repeated
from agentctl.service.hosting import Hosting
from agentctl.store.database import Database
from agentctl.store.repositories import live_usage
from agentctl.store.repositories.live_usage import Used
from agentctl.store.repositories.usage import NANODOLLARS
from agentctl.store.repositories.usage_reads import UsageScope
from agentctl.store.visibility import EVERYONE, Visibility

WARNING = 0.8
"""The part of a limit from which on its budget is reported as nearly used up."""

MAXIMUM_ROWS = 100
"""Users or components that are listed of one budget: those that have used most."""

_OWNER_COLUMNS = {"user": ("user_id",), "agent": ("component_id",), "server": ()}


async def check_start(
    hosting: Hosting, principal: Principal, database: Database, submission: Submission
) -> None:
    """Check the budgets and the rate limit of a start. A repeated request starts nothing.

    Raises:
        BudgetExceeded: a budget is used up.
        RateLimited: the caller has started too many runs.
    """
    budgets, limits = hosting.budgets, hosting.rate_limits
    if not (budgets.budgets or limits.limits_runs):
        return
    if await find_repeated(database, submission.idempotency):
        return
    if principal.via == "http":
        limits.take_run(principal.identity)
    await budgets.check_start(submission.spec.user_id, submission.component)


class BudgetOperations(OperationFamily):
    """Reads of the budgets of the configuration."""

    async def get_budgets(self, *, user_id: str | None = None) -> Document[list[BudgetRecord]]:
        async with self.audit("get_budgets"):
            check_texts(user_id=user_id)
            visibility = self.lookups.visibility
            rows: list[BudgetRecord] = []
            for budget in self.hosting.settings.budgets:
                if budget.per == "user" or visibility.everyone:
                    rows += await self._list_rows(budget, visibility, user_id)
            return build_document(rows)

    async def _list_rows(
        self, budget: Budget, visibility: Visibility, user_id: str | None
    ) -> list[BudgetRecord]:
        period = find_period(budget)
        if budget.per == "user" and (user_id is not None or not visibility.everyone):
            owner = user_id if visibility.everyone else visibility.user_id
            if not visibility.sees(owner) or user_id not in (None, owner):
                return []
            scope = build_scope(budget, period, owner, "")
            used = (await self._read(scope, ())).get("", Used())
            return [_build_row(budget, period, owner, used)]
        scope = UsageScope(
            "day", period.since, period.before, EVERYONE, component_id=budget.component or None
        )
        found = await self._read(scope, _OWNER_COLUMNS[budget.per])
        if budget.component or budget.per == "server":
            found = {(budget.component if budget.per == "agent" else ""): Used(), **found}
        if budget.per == "server":
            found = {"": found[""]}
        most = sorted(found.items(), key=lambda item: (-measure(budget, item[1]), item[0]))
        return [
            _build_row(budget, period, name or None, used) for name, used in most[:MAXIMUM_ROWS]
        ]

    async def _read(self, scope: UsageScope, by: tuple[str, ...]) -> Mapping[str, Used]:
        found: dict[str, Used] = {}
        for database in self.hosting.databases.values():
            groups = await self.hosting.prices.run(
                lambda cost_of: live_usage.read_used(scope, by, cost_of), database.read
            )
            for name, used in groups.items():
                found[name] = found.get(name, Used()).add(used)
        return found


def _build_row(budget: Budget, period: Period, name: str | None, used: Used) -> BudgetRecord:
    is_tokens = budget.tokens is not None
    amount, limit = measure(budget, used), find_limit(budget)
    state = "exceeded" if amount >= limit else "warning" if amount >= WARNING * limit else "open"
    return BudgetRecord(
        budget_id=budget.id,
        per=budget.per,
        user_id=name if budget.per == "user" else None,
        component_id=(name if budget.per == "agent" else None) or budget.component or None,
        period=budget.period,
        unit="tokens" if is_tokens else "dollars",
        limit=limit,
        used=amount,
        live=used.live_tokens if is_tokens else used.live_cost / NANODOLLARS,
        state=state,  # type: ignore[typeddict-item]
        on_exceed=budget.on_exceed,
        unpriced_tokens=used.unpriced_tokens,
        since=format_rfc3339(period.since),
        resets_at=format_rfc3339(period.before),
    )
