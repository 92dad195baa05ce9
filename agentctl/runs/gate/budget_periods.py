"""The present periods of budgets: their limits in effect, questions at the limit, and warnings.

With `on_exceed = "ask"` a run that reaches the limit of its budget pauses, with an approval for a
call that no tool makes. An approval raises the limit to the level that the question has named, so
several runs that ask at the same level raise it once. It has its effect when the next leg of the
run begins: the row of the run and the row of the period can be in two databases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import orjson

from agentctl import errors
from agentctl.config.budgets import Budget
from agentctl.config.settings import Settings
from agentctl.records.approvals import ApprovalRow
from agentctl.records.times import format_rfc3339, now
from agentctl.runs.desk.decisions import (
    BUDGET_TOOL,
    is_budget_question,
    name_budget_question,
    read_budget_question,
)
from agentctl.runs.states import ExecutedRun
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.pauses import Ask
from agentctl.runtime.transcript.events import BudgetWarned
from agentctl.store.database import Database, Steps, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import approvals, budget_periods
from agentctl.store.repositories.budget_periods import PeriodKey, PeriodRow
from agentctl.store.repositories.usage import NANODOLLARS
from agentctl.webhooks.facts import WarnedBudget, publish_budget
from agentctl.work.event_loop import retry_while_unavailable

ASKED_SECONDS = 60.0
"""`Retry-After` of a new run while another one waits for the decision about its budget."""

MAXIMUM_AMOUNT = 1_000_000_000_000_000
"""Tokens, or US dollars, by which a person can raise a limit at once."""


class Period(NamedTuple):
    """The present period of a budget, in microseconds UTC: its begin, and that of the next one."""

    since: int
    before: int


class BudgetPeriods:
    """The periods of the budgets of a configuration, with the decisions of people."""

    def __init__(self, settings: Settings, databases: Databases) -> None:
        self._budgets = {budget.id: budget for budget in settings.budgets}
        self._asks = any(budget.on_exceed == "ask" for budget in settings.budgets)
        self._has_approvers = settings.has_approvers
        self._databases = databases
        self._warned: set[PeriodKey] = set()

    async def check_start(
        self, budget: Budget, period: Period, amount: float, user_id: str | None, component_id: str
    ) -> None:
        """Check that a new run may start: it asks a person when it begins.

        Args:
            amount: what was used: tokens, or US dollars.

        Raises:
            BudgetExceeded: a person has refused to continue, or was asked by another run.
        """
        key = build_key(budget, period, user_id, component_id)
        row = await self._databases.system.read(budget_periods.get(key)) or PeriodRow()
        limit = find_limit_in_effect(budget, row)
        if amount < limit:
            return

        detail = describe_exceeded(budget, period, limit)
        if row.refused_at == to_units(budget, limit):
            raise errors.BudgetExceeded(
                f"{detail}; a person has refused to continue",
                budget=budget.id,
                seconds=(period.before - now()) / 1_000_000,
            )

        was_asked = approvals.is_asked(
            name_budget_question(budget.id, period.since, to_units(budget, limit)),
            user_id=user_id or "" if budget.per == "user" else None,
            component_id=component_id if budget.per == "agent" else None,
        )
        for database in self._databases.values():
            if await database.read(was_asked):
                raise errors.BudgetExceeded(
                    f"{detail}; a person was asked to continue",
                    budget=budget.id,
                    seconds=ASKED_SECONDS,
                )

    async def check(
        self, budget: Budget, period: Period, amount: float, run: ExecutedRun, *, may_ask: bool
    ) -> Ask | None:
        """Return the question that a run has to ask before it continues; None if it may continue.

        Raises:
            ExecutionError: the limit is reached, and the run cannot ask, or a person has refused.
        """
        key = build_key(budget, period, run.spec.user_id, run.component.id)
        read = partial(self._databases.system.read, budget_periods.get(key))
        stored_row = await retry_while_unavailable(read, stopped=run.stop_requested)
        row = stored_row or PeriodRow()
        limit = find_limit_in_effect(budget, row)
        if amount < limit:
            return None

        detail = describe_exceeded(budget, period, limit)
        if not may_ask or row.refused_at == to_units(budget, limit):
            raise ExecutionError("BUDGET_EXCEEDED", detail)
        return self._build_question(budget, period, limit, detail)

    def _build_question(self, budget: Budget, period: Period, limit: float, detail: str) -> Ask:
        amount_type = "integer" if budget.unit == "tokens" else "number"
        shown_values: Mapping[str, Any] = {
            "budget": budget.id,
            "period": budget.period,
            "since": format_rfc3339(period.since),
            "unit": budget.unit,
            "limit": limit,
        }

        # A person can edit only the amount: what the question says is fixed.
        fixed_schemas = {name: {"const": value} for name, value in shown_values.items()}
        amount_schema = {"type": amount_type, "exclusiveMinimum": 0, "maximum": MAXIMUM_AMOUNT}
        schema = {
            "type": "object",
            "properties": {**fixed_schemas, "further": amount_schema},
            "required": [*shown_values, "further"],
            "additionalProperties": False,
        }

        return Ask(
            kind="approval",
            tool_call_id=name_budget_question(budget.id, period.since, to_units(budget, limit)),
            tool_name=BUDGET_TOOL,
            arguments={**shown_values, "further": budget.limit},
            # No user raises its own budget, unless everyone is the same user.
            policy="other" if self._has_approvers else "user",
            question=f"{detail}. Continue with a further {_format(budget, budget.limit)}?",
            schema=schema,
        )

    async def settle(self, run: ExecutedRun) -> None:
        """Let the decisions about the questions of a run have their effects, when its leg begins.

        Safe to repeat.

        Raises:
            ExecutionError: a person has refused to continue, or nobody has decided in time.
        """
        if not self._asks:
            return

        read = partial(run.database.read, approvals.list_of_run(run.run_id))
        for row in await retry_while_unavailable(read, stopped=run.stop_requested):
            budget = self._budgets.get(str(orjson.loads(row.arguments).get("budget")))
            if budget is None or not is_budget_question(row) or row.execution is not None:
                continue
            await self._settle_question(run, budget, row)

    async def _settle_question(self, run: ExecutedRun, budget: Budget, row: ApprovalRow) -> None:
        since, asked_limit = read_budget_question(row)
        # The key needs the begin of the period only.
        key = build_key(budget, Period(since, 0), run.spec.user_id, run.component.id)
        system = self._databases.system

        if row.status != "approved":
            reason = "nobody has decided in time"
            if row.status == "rejected":
                reason = "a person has refused to continue"
                refuse = partial(system.write, budget_periods.refuse(key, asked_limit))
                await retry_while_unavailable(refuse, stopped=run.stop_requested)
            raise ExecutionError(
                "BUDGET_EXCEEDED", f"The budget {budget.id} is used up, and {reason}"
            )

        arguments = orjson.loads(row.approved_arguments or row.arguments)
        raised_to = asked_limit + to_units(budget, arguments["further"])
        raise_limit = partial(system.write, budget_periods.raise_limit(key, raised_to))
        await retry_while_unavailable(raise_limit, stopped=run.stop_requested)
        close = partial(run.database.write, _close_question(row, raised_to, now()))
        await retry_while_unavailable(close, stopped=run.stop_requested)

    async def warn(self, budget: Budget, period: Period, amount: float, run: ExecutedRun) -> None:
        """Publish, once in a period, that a budget has reached the level of its warning."""
        level = find_warning(budget)
        key = build_key(budget, period, run.spec.user_id, run.component.id)
        if level is None or amount < level or key in self._warned:
            return

        component_id = budget.component or None
        if budget.per == "agent":
            component_id = run.component.id

        warned = WarnedBudget(
            budget_id=budget.id,
            per=budget.per,
            user_id=run.spec.user_id if budget.per == "user" else None,
            component_id=component_id,
            period=budget.period,
            unit=budget.unit,
            limit=budget.limit,
            warn_at=level,
            run_id=run.run_id,
            since=format_rfc3339(period.since),
            resets_at=format_rfc3339(period.before),
        )

        system = self._databases.system
        write = partial(system.write, _write_warning(system, key, warned, now()))
        is_first = await retry_while_unavailable(write, stopped=run.stop_requested)
        self._remember(key)

        if is_first:
            system.outbox.wake()
            run.emit(BudgetWarned(budget.id, budget.period, warned.unit, warned.limit, level))

    def _remember(self, key: PeriodKey) -> None:
        # The keys of past periods are of no use any more.
        self._warned = {warned_key for warned_key in self._warned if warned_key.since >= key.since}
        self._warned.add(key)


@unit
def _write_warning(system: Database, key: PeriodKey, warned: WarnedBudget, at: int) -> Steps[bool]:
    is_first = yield from budget_periods.mark_warned(key, at)
    if is_first:
        yield from publish_budget(system.outbox, warned, at)
    return is_first


@unit
def _close_question(row: ApprovalRow, raised_to: int, at: int) -> Steps[None]:
    yield from approvals.begin_execution(row.approval_id, row.run_id, at)
    result = orjson.dumps(raised_to).decode()
    yield from approvals.end_execution(row.approval_id, row.run_id, "done", result, at)


def build_key(budget: Budget, period: Period, user_id: str | None, component_id: str) -> PeriodKey:
    """Return the key of the period of the user, the component or the server that counts."""
    subject = ""
    if budget.per == "user":
        subject = hash_subject(user_id or "")
    elif budget.per == "agent":
        subject = hash_subject(component_id)
    return PeriodKey(budget.id, subject, period.since)


def hash_subject(subject: str) -> str:
    """Return the name of a user or a component in the rows of periods: no row has a user id."""
    return hashlib.sha256(subject.encode()).hexdigest()


def to_units(budget: Budget, amount: float) -> int:
    """Return tokens, or billionths of a US dollar, of tokens or US dollars."""
    return int(amount) if budget.unit == "tokens" else round(amount * NANODOLLARS)


def from_units(budget: Budget, units: int) -> float:
    """Return tokens or US dollars of what `to_units` returns."""
    return units if budget.unit == "tokens" else units / NANODOLLARS


def find_limit_in_effect(budget: Budget, row: PeriodRow) -> float:
    """Return the limit of a budget, or the higher one that a person has approved."""
    if budget.on_exceed != "ask" or row.raised_to is None:
        return budget.limit
    return max(budget.limit, from_units(budget, row.raised_to))


def find_warning(budget: Budget) -> float | None:
    """Return the tokens or US dollars from which on a budget warns; None for no warning."""
    if budget.warn_at is None or budget.warn_at >= 1:
        return budget.warn_at
    return budget.limit * budget.warn_at


def describe_exceeded(budget: Budget, period: Period, limit: float) -> str:
    """Return the public text for a budget that is used up.

    It does not have the sum: the use of other users may be part of it.
    """
    owners = {"user": "each user", "agent": "each component", "server": "the server"}
    owner = owners[budget.per]
    if budget.per == "agent" and budget.component:
        owner = budget.component

    return (
        f"The budget {budget.id} is used up: {_format(budget, limit)} a {budget.period}"
        f" of {owner};"
        f" the next {budget.period} begins at {format_rfc3339(period.before)}"
    )


def _format(budget: Budget, amount: float) -> str:
    return f"{amount:,} tokens" if budget.unit == "tokens" else f"{amount:,.2f} dollars"
