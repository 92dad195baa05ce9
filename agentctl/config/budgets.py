"""The tables `[[budgets]]` and `[rate_limits]` (docs/budgets.md), and prices (docs/usage.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from agentctl.config.names import Id
from agentctl.config.types import Reference

BudgetSubject = Literal["user", "agent", "server"]
BudgetPeriod = Literal["day", "month"]
OnExceed = Literal["refuse", "stop", "ask"]


@dataclass(frozen=True, slots=True)
class Budget:
    """An entry of `[[budgets]]`: what runs may use in a period. It has `tokens` or `cost`."""

    id: Id

    per: BudgetSubject
    """The owners of separate sums: users, or agents, teams and workflows, or the server."""

    component: Annotated[str, Reference(("agents", "teams", "workflows"))] = ""
    """Only runs of this agent, team or workflow; empty for all."""

    period: BudgetPeriod = "day"
    """A day or a month, UTC."""

    tokens: Annotated[int | None, Field(ge=1, le=1_000_000_000_000_000)] = None

    cost: Annotated[float | None, Field(ge=0.000_001, le=1_000_000_000)] = None
    """US dollars."""

    on_exceed: OnExceed = "refuse"
    """The effect of a limit that is reached.

    `refuse` starts no further run, `stop` also ends live runs at their next call of a model, and
    `ask` lets them wait there until a person has raised the limit.
    """

    warn_at: Annotated[float | None, Field(gt=0, le=1_000_000_000_000_000)] = None
    """A part of the limit, below 1, or an amount, from which on the budget warns once in a period;
    None for no warning."""

    unknown: Literal["refuse", "allow"] = "refuse"
    """The effect of a budget of a cost on models whose price is not known.

    With `refuse` they are refused, with `allow` their tokens do not count.
    """

    @property
    def limit(self) -> float:
        """The limit: tokens, or US dollars."""
        return self.tokens if self.tokens is not None else self.cost or 0

    @property
    def unit(self) -> Literal["tokens", "dollars"]:
        """The unit of the limit."""
        return "tokens" if self.tokens is not None else "dollars"


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The table `[rate_limits]`: what one caller may do at one process; 0 for no limit."""

    requests_per_minute: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    runs_per_minute: Annotated[int, Field(ge=0, le=10_000_000)] = 0


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The table `price` of a model: US dollars for a million tokens."""

    input: Annotated[float, Field(ge=0, le=1_000_000)]
    output: Annotated[float, Field(ge=0, le=1_000_000)]

    cached: Annotated[float | None, Field(ge=0, le=1_000_000)] = None
    """For input tokens that the provider has in its cache; None for the price of `input`."""
