"""The tables `[[budgets]]` and `[rate_limits]` (docs/budgets.md), and `[quotas]`."""

from __future__ import annotations

from typing import Annotated, Literal

from agentctl.config.names import Id
from agentctl.config.types import Reference
from agentctl.light_dataclass import dataclass
from agentctl.records.value_types import Range

BudgetSubject = Literal["user", "agent", "server"]
BudgetPeriod = Literal["day", "month"]


@dataclass(frozen=True, slots=True)
class Budget:
    """An entry of `[[budgets]]`: what runs may use in a period. It has `tokens` or `cost`.

    Attributes:
        per: what has a separate sum: each user, each agent, team and workflow, or the server.
        component: only runs of this agent, team or workflow; empty for all.
        period: a day or a month, UTC.
        cost: US dollars.
        on_exceed: `refuse` starts no further run; `stop` also ends live runs at their next call of
            a model.
        unknown: with `refuse` a budget of a cost refuses models whose price is not known, with
            `allow` their tokens do not count.
    """

    id: Id
    per: BudgetSubject
    component: Annotated[str, Reference(("agents", "teams", "workflows"))] = ""
    period: BudgetPeriod = "day"
    tokens: Annotated[int | None, Range(1, 1_000_000_000_000_000)] = None
    cost: Annotated[float | None, Range(0.000_001, 1_000_000_000)] = None
    on_exceed: Literal["refuse", "stop"] = "refuse"
    unknown: Literal["refuse", "allow"] = "refuse"


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The table `[rate_limits]`: what one caller may do at one process; 0 for no limit."""

    requests_per_minute: Annotated[int, Range(0, 10_000_000)] = 0
    runs_per_minute: Annotated[int, Range(0, 10_000_000)] = 0


@dataclass(frozen=True, slots=True)
class Quotas:
    """The table `[quotas]`: bounds for the stored data of one user in one database; 0 for none."""

    sessions_per_user: Annotated[int, Range(0, 1 << 40)] = 0
    memories_per_user: Annotated[int, Range(0, 1 << 40)] = 0
    bytes_per_user: Annotated[int, Range(0, 1 << 50)] = 0
