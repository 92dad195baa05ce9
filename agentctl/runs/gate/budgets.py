"""Budgets: bounds of the tokens or the cost of runs in a period (docs/budgets.md), and prices.

A check reads the sums of the ended runs and what the live runs of all servers have reported. A run
reports before each check, so that at most one call of a model is unknown of each run. A check
starts nothing that depends on an older sum: the bound on overshoot has no time in it.

A price is that of the configuration, else that of the package `genai-prices`; None if it is not
known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from agentctl import errors
from agentctl.config.budgets import Budget
from agentctl.config.settings import Agent, Model, Settings, Team
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.records.times import now
from agentctl.runs.gate.budget_periods import BudgetPeriods, Period, describe_exceeded
from agentctl.runs.log.results import count_by_model, encode_counters
from agentctl.runs.states import Ending, ExecutedRun
from agentctl.runtime.component import Component
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.call_fitting import find_listed, is_listed
from agentctl.runtime.pauses import Ask
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Database, Work
from agentctl.store.databases import Databases
from agentctl.store.repositories import quotas
from agentctl.store.repositories.quotas import Used
from agentctl.store.repositories.sessions import NO_COST, Cost
from agentctl.store.repositories.usage import NANODOLLARS, CostOf, UnknownPrice
from agentctl.store.repositories.usage_reads import UsageScope
from agentctl.store.visibility import EVERYONE, Visibility
from agentctl.work.event_loop import Tasks, retrieve_exception, retry_while_unavailable
from agentctl.work.run_scope import outside_run

T = TypeVar("T")


class Price(NamedTuple):
    """The prices of a million tokens of a model in US dollars, by the kind of tokens."""

    input: float
    output: float

    cached: float
    """Tokens that the provider reads from its cache."""

    cache_write: float
    """Tokens that the provider writes to its cache."""

    def cost(self, counters: Mapping[str, int]) -> int:
        """Return the cost of some tokens in billionths of a US dollar.

        Args:
            counters: the input tokens include the tokens of the cache, the output tokens include
                the tokens of the thinking.
        """
        cached = counters["cache_read_tokens"]
        written = counters["cache_write_tokens"]
        # Some providers report more tokens of the cache than input tokens.
        plain = max(counters["input_tokens"] - cached - written, 0)
        microdollars = (
            plain * self.input
            + counters["output_tokens"] * self.output
            + cached * self.cached
            + written * self.cache_write
        )
        return round(microdollars * 1_000)


_FREE = Price(0, 0, 0, 0)


class Prices:
    """The prices of the models of a configuration, and of the models that libraries name."""

    def __init__(self, settings: Settings) -> None:
        self._configured = {model.id: model for model in settings.models}
        # Reversed: of several entries with the same name, the first one counts.
        priced_models = [model for model in reversed(settings.models) if model.price is not None]
        self._named = {model.model: model for model in priced_models}
        # The prices that were looked up, by the id or the name of the model.
        self._known: dict[str, Price | None] = {}

    async def run(self, work: Callable[[CostOf], Work[T]], execute: Callable[[Work[T]], Any]) -> T:
        """Execute a unit that needs costs, and again if it needs a price that must be looked up.

        Args:
            execute: `Database.read` or `Database.write`.
        """
        while True:
            try:
                result: T = await execute(work(self._cost_of))
            except UnknownPrice as error:
                self._known[error.model] = await self._find(error.model)
            else:
                return result

    async def find_cost(self, model: str, counters: Mapping[str, int]) -> int | None:
        """Return the cost of the tokens of a model, as a `CostOf` does, after a look-up."""
        if model not in self._known:
            self._known[model] = await self._find(model)
        return self._cost_of(model, counters)

    async def is_known(self, model: str) -> bool:
        """Return True if the price of a model is known."""
        return await self.find_cost(model, dict.fromkeys(TOKEN_COUNTERS, 0)) is not None

    def _cost_of(self, model: str, counters: Mapping[str, int]) -> int | None:
        if model not in self._known:
            raise UnknownPrice(model)
        price = self._known[model]
        return None if price is None else price.cost(counters)

    async def _find(self, name: str) -> Price | None:
        """Return the price of a model by its id, or by its name at its provider."""
        if not name:
            return None

        model = self._configured.get(name) or self._named.get(name)
        if model is None:
            return _read_listed(await find_listed(name))
        if model.price is not None or not is_listed(model):
            return _read_configured(model)
        return _read_listed(await find_listed(model))


def _read_configured(model: Model) -> Price | None:
    """Return the price of a model that the configuration has; None if it has none."""
    price = model.price
    if price is None:
        return _FREE if model.provider == "demo" else None

    cached = price.input if price.cached is None else price.cached
    return Price(price.input, price.output, cached, cache_write=price.input)


def _read_listed(listed: Any) -> Price | None:
    """Return the price of a model in the list of `genai_prices`; None if it is not in the list."""
    if listed is None:
        return None

    prices = listed.model_price
    input_price = _read_base(prices.input_mtok)
    output_price = _read_base(prices.output_mtok)
    if input_price is None or output_price is None:
        return None

    # Without a price of its own, a token of the cache costs as much as another input token.
    cached_price = _read_base(prices.cache_read_mtok)
    if cached_price is None:
        cached_price = input_price
    written_price = _read_base(prices.cache_write_mtok)
    if written_price is None:
        written_price = input_price
    return Price(input_price, output_price, cached_price, written_price)


def _read_base(price: Any) -> float | None:
    """Return a price without the surcharges for large requests."""
    return None if price is None else float(getattr(price, "base", price))


FORGET_REPORTS = 64
"""Reports after which the rows of ended runs are deleted."""


class Budgets:
    """The budgets of a configuration, for the runs of this process."""

    def __init__(self, settings: Settings, databases: Databases, prices: Prices) -> None:
        self.budgets = settings.budgets
        self._models = {model.id: model for model in settings.models}
        self._databases = databases
        self.periods = BudgetPeriods(settings, databases)
        self._prices = prices
        self._reads: dict[tuple[str, UsageScope], SharedRead] = {}
        self._tasks = Tasks()
        # By id of a run that is checked in the background: True if it has to be checked again.
        self._watched: dict[str, bool] = {}
        self._reports = 0

    async def check_start(self, user_id: str | None, component: Component) -> None:
        """Check that a run may start; one that has to ask a person may.

        Raises:
            BudgetExceeded: a budget is used up, or has no price for a model of the component.
        """
        for budget in self._find(component):
            unpriced_model = await self._find_unpriced(budget, component)
            if unpriced_model is not None:
                raise errors.BudgetExceeded(
                    _describe_unpriced(budget, unpriced_model), budget=budget.id, seconds=None
                )

            period = find_period(budget)
            used = await self._read(budget, user_id, component, period)
            amount = measure(budget, used)
            if budget.on_exceed == "ask":
                await self.periods.check_start(budget, period, amount, user_id, component.id)
            elif amount >= budget.limit:
                seconds = (period.before - now()) / 1_000_000
                detail = describe_exceeded(budget, period, budget.limit)
                raise errors.BudgetExceeded(detail, budget=budget.id, seconds=seconds)

    def watch(self, run: ExecutedRun) -> None:
        """Check a run of an agent in code in the background; stop it if a budget is used up.

        Such a run calls its models itself, so this is called for each use that it reports. While a
        check is under way, further calls have one more check made after it (`check`).
        """
        if not self._find(run.component):
            return

        if run.spec.run_id in self._watched:
            self._watched[run.spec.run_id] = True
            return

        self._watched[run.spec.run_id] = False
        with outside_run():
            self._tasks.start(self._watch(run))

    async def close(self) -> None:
        """Wait for the checks under way."""
        await self._tasks.cancel_all()

    async def _watch(self, run: ExecutedRun) -> None:
        try:
            while not run.has_ended:
                await self.check(run)
                if not self._watched[run.spec.run_id]:
                    return
                self._watched[run.spec.run_id] = False
        except ExecutionError as failure:
            run.stop(Ending.failed(failure.code, failure.detail))
        except errors.AgentctlError:
            # The next call, or the end of the run, finds the database.
            return
        finally:
            del self._watched[run.spec.run_id]

    async def check(
        self, run: ExecutedRun, *, all_budgets: bool = False, may_ask: bool | None = False
    ) -> Ask | None:
        """Report the tokens and the cost of a run so far, and check that it may call a model.

        Args:
            all_budgets: True if the work of a member begins, or of a run that was queued.
                Otherwise only budgets that stop runs, or ask, count.
            may_ask: True if the run can wait here for a decision about a budget that asks; False
                if such a budget ends it. None leaves these budgets to the next call of a model.

        Returns:
            The question that the run has to ask before it continues; None if it may continue.

        Raises:
            ExecutionError: a budget is used up, or a price is not known.
            Unavailable: the database does not answer.
        """
        user_id = run.spec.user_id
        component = run.component
        budgets = self._find(component)
        if not budgets:
            return None
        if not all_budgets and not run.transcript.metrics["total_tokens"]:
            # Its first call: the check at its begin was just made.
            return None

        unpriced_call = await self._report(run)
        for budget in budgets:
            if all_budgets:
                unpriced_model = await self._find_unpriced(budget, component)
                if unpriced_model is not None:
                    raise ExecutionError(
                        "BUDGET_EXCEEDED", _describe_unpriced(budget, unpriced_model)
                    )

            # Otherwise it refuses new runs, and lets this one continue.
            is_bound = all_budgets or budget.on_exceed != "refuse"
            if not is_bound and budget.warn_at is None:
                continue

            is_unpriced = unpriced_call is not None and budget.cost is not None
            if is_bound and is_unpriced and budget.unknown == "refuse":
                raise ExecutionError(
                    "BUDGET_EXCEEDED", _describe_unpriced(budget, unpriced_call or "")
                )

            period = find_period(budget)
            used = await retry_while_unavailable(
                partial(self._read, budget, user_id, component, period), stopped=run.stop_requested
            )
            amount = measure(budget, used)
            await self.periods.warn(budget, period, amount, run)

            if budget.on_exceed == "ask":
                ask = None
                if may_ask is not None:
                    ask = await self.periods.check(budget, period, amount, run, may_ask=may_ask)
                if ask is not None:
                    return ask
            elif is_bound and amount >= budget.limit:
                detail = describe_exceeded(budget, period, budget.limit)
                raise ExecutionError("BUDGET_EXCEEDED", detail)

        return None

    async def measure(self, run: ExecutedRun) -> tuple[int, int, str | None]:
        """Measure a run so far.

        Returns:
            Its tokens, its cost in billionths of a US dollar, and a model whose price is not known
            or None. Without a budget for its component: 0, 0 and None.
        """
        tokens = run.transcript.metrics["total_tokens"] or 0
        if not tokens or not self._find(run.component):
            return 0, 0, None
        if all(budget.cost is None for budget in self.budgets):
            return tokens, 0, None

        cost, _, unpriced_model = await self._price(run.transcript)
        return tokens, cost, unpriced_model

    async def measure_cost(self, transcript: Transcript) -> Cost:
        """Return the cost of the tokens of a run, members not included."""
        if not transcript.metrics["total_tokens"]:
            return NO_COST

        cost, priced_tokens, _ = await self._price(transcript)
        return Cost(cost / NANODOLLARS, priced_tokens)

    async def _price(self, transcript: Transcript) -> tuple[int, int, str | None]:
        """Look up the prices of the tokens of a run.

        Returns:
            Their cost in billionths of a US dollar, the number of tokens that it includes, and a
            model whose price is not known or None.
        """
        cost = 0
        priced_tokens = 0
        unpriced_model = None
        for model, counters in count_by_model(transcript).items():
            # A counter that the model did not report counts as 0.
            counts = {name: count or 0 for name, count in counters.items()}
            model_cost = await self._prices.find_cost(model, counts)
            if model_cost is not None:
                cost += model_cost
                priced_tokens += counts["total_tokens"]
            elif counts["total_tokens"]:
                unpriced_model = model or "of an agent in code"

        return cost, priced_tokens, unpriced_model

    async def _report(self, run: ExecutedRun) -> str | None:
        """Store the tokens and the cost of a run; return a model whose price is not known."""
        tokens, cost, unpriced_model = await self.measure(run)
        if not tokens:
            return None

        database = run.database
        counters = encode_counters(run.transcript)
        await retry_while_unavailable(
            lambda: database.write(quotas.report(run.spec.run_id, tokens, cost, counters)),
            stopped=run.stop_requested,
        )

        self._reports += 1
        if self._reports % FORGET_REPORTS == 0:
            await retry_while_unavailable(
                lambda: database.write(quotas.forget_ended()), stopped=run.stop_requested
            )
        return unpriced_model

    def _find(self, component: Component) -> list[Budget]:
        """Return the budgets that count for the runs of a component."""
        return [budget for budget in self.budgets if budget.component in ("", component.id)]

    async def _find_unpriced(self, budget: Budget, component: Component) -> str | None:
        """Return a model of a component whose price a budget needs and does not know."""
        if budget.cost is None or budget.unknown == "allow":
            return None

        for model in self._list_models(component):
            if not await self._prices.is_known(model):
                return model
        return None

    def _list_models(self, component: Component) -> Iterator[str]:
        spec = component.spec
        if isinstance(spec, Agent | Team) and spec.model:
            yield spec.model
            yield from self._models[spec.model].fallbacks

    async def _read(
        self, budget: Budget, user_id: str | None, component: Component, period: Period
    ) -> Used:
        """Read what has been used of a budget in a period, in all databases."""
        used = Used()
        scope = build_scope(budget, period, user_id, component.id)
        for database in self._databases.values():
            key = (database.id, scope)
            read = self._reads.setdefault(key, SharedRead())
            try:
                used = used.add(await read.get(partial(self.read_scope, database, scope)))
            finally:
                if read.is_idle:
                    self._reads.pop(key, None)
        return used

    async def read_scope(self, database: Database, scope: UsageScope) -> Used:
        """Read what the runs of a scope have used."""

        def work(cost_of: CostOf) -> Work[Mapping[str, Used]]:
            return quotas.read_used(scope, (), cost_of)

        used: Mapping[str, Used] = await self._prices.run(work, database.read)
        return used.get("", Used())


class SharedRead:
    """A read that concurrent callers share: each gets a result that was read after its call."""

    def __init__(self) -> None:
        self._current: asyncio.Task[Any] | None = None
        self._next: asyncio.Task[Any] | None = None

    @property
    def is_idle(self) -> bool:
        return self._current is None and self._next is None

    async def get(self, read: Callable[[], Any]) -> Any:
        """Return the result of a read that begins after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._read_after(self._current, read))
            self._next.add_done_callback(retrieve_exception)
        return await asyncio.shield(self._next)

    async def _read_after(self, earlier: asyncio.Task[Any] | None, read: Callable[[], Any]) -> Any:
        if earlier is not None:
            await asyncio.wait({earlier})

        # It begins: later callers need the read after it.
        self._current = self._next
        self._next = None
        try:
            return await read()
        finally:
            if self._next is None:
                self._current = None


def find_period(budget: Budget) -> Period:
    """Return the present period of a budget: a day or a month of UTC."""
    since = datetime.fromtimestamp(now() / 1_000_000, UTC).replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    if budget.period == "day":
        before = since + timedelta(days=1)
    else:
        since = since.replace(day=1)
        # No month has more than 31 days.
        before = (since + timedelta(days=32)).replace(day=1)

    return Period(round(since.timestamp()) * 1_000_000, round(before.timestamp()) * 1_000_000)


def build_scope(
    budget: Budget, period: Period, user_id: str | None, component_id: str
) -> UsageScope:
    """Return the runs that count for a budget: those of a user, a component, or all."""
    visibility = Visibility(everyone=False, user_id=user_id) if budget.per == "user" else EVERYONE
    component = component_id if budget.per == "agent" else budget.component
    return UsageScope(
        "day", period.since, period.before, visibility, component_id=component or None
    )


def measure(budget: Budget, used: Used) -> float:
    """Return what counts for a budget: tokens, or US dollars."""
    return used.tokens if budget.unit == "tokens" else used.cost / NANODOLLARS


def _describe_unpriced(budget: Budget, model: str) -> str:
    return (
        f"The budget {budget.id} is a cost, and the price of the model {model} is not known: the"
        ' operator can set its price, or unknown = "allow" of the budget'
    )
