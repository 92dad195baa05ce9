"""Records of budgets (docs/budgets.md)."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from agentctl.records.times import Timestamp


class BudgetRecord(TypedDict):
    """A budget in its present period, with what one user, one component or the server has used.

    `user_id` is that of a budget per user, null without a user; `component_id` that of a budget per
    component, or the only component that counts; null for all. `limit`, `used` and `live` are
    tokens, or US dollars. `live` is the part of `used` of runs that have not ended. `state` is
    `warning` from the part `warn` of the limit on. `unpriced_tokens` do not count for a cost: their
    price is not known.
    """

    budget_id: str
    per: Literal["user", "agent", "server"]
    user_id: str | None
    component_id: str | None
    period: Literal["day", "month"]
    unit: Literal["tokens", "dollars"]
    limit: float
    used: float
    live: float
    state: Literal["open", "warning", "exceeded"]
    on_exceed: Literal["refuse", "stop"]
    unpriced_tokens: int
    since: Timestamp
    resets_at: Timestamp
