"""Prices of models: those of the configuration, else those of the package `genai-prices`.

A price that is not known is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.runtime.models.call_fitting import find_listed, is_listed
from agentctl.store.repositories.usage import CostOf, UnknownPrice

if TYPE_CHECKING:
    from agentctl.config.settings import Model, Settings
    from agentctl.store.database import Work

T = TypeVar("T")


class Price(NamedTuple):
    """The prices of a million tokens of a model in US dollars, by the kind of tokens.

    `cached` are those that the provider reads from its cache, `cache_write` those it writes there.
    """

    input: float
    output: float
    cached: float
    cache_write: float

    def cost(self, counters: Mapping[str, int]) -> int:
        """Return the cost of some tokens in billionths of a US dollar.

        The input tokens include those of the cache, the output tokens those of the thinking.
        """
        cached, written = counters["cache_read_tokens"], counters["cache_write_tokens"]
        plain = max(counters["input_tokens"] - cached - written, 0)
        dollars = (
            plain * self.input
            + counters["output_tokens"] * self.output
            + cached * self.cached
            + written * self.cache_write
        )
        return round(dollars * 1_000)


_FREE = Price(0, 0, 0, 0)


class Prices:
    """The prices of the models of a configuration, and of those that libraries name."""

    def __init__(self, settings: Settings) -> None:
        self._configured = {model.id: model for model in settings.models}
        priced = (model for model in reversed(settings.models) if model.price is not None)
        self._named = {model.model: model for model in priced}
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
        if not name:
            return None
        model = self._configured.get(name) or self._named.get(name)
        if model is not None and (model.price is not None or not is_listed(model)):
            return _read_configured(model)
        return _read_listed(await find_listed(name if model is None else model))


def _read_configured(model: Model) -> Price | None:
    price = model.price
    if price is None:
        return _FREE if model.provider == "demo" else None
    cached = price.input if price.cached is None else price.cached
    return Price(price.input, price.output, cached, price.input)


def _read_listed(listed: Any) -> Price | None:
    if listed is None:
        return None
    found = listed.model_price
    asked, answered = _read_base(found.input_mtok), _read_base(found.output_mtok)
    if asked is None or answered is None:
        return None
    cached, written = _read_base(found.cache_read_mtok), _read_base(found.cache_write_mtok)
    return Price(
        asked, answered, asked if cached is None else cached, asked if written is None else written
    )


def _read_base(price: Any) -> float | None:
    """Return a price without the surcharges for large requests."""
    return None if price is None else float(getattr(price, "base", price))
