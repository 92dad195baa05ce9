"""The usage of live runs with a budget, and the sums of a budget: of ended and of live runs.

The row of a run counts until the transaction that ends the run, which writes its row in
`usage_ends`. So each run counts once (docs/decisions/0107).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.listing import Conditions
from agentctl.store.repositories import usage_reads
from agentctl.store.repositories.usage import CostOf, Sums
from agentctl.store.repositories.usage_reads import UsageScope
from agentctl.store.states import IS_OPEN

_REPORT = Sql(
    "INSERT INTO live_usage (run_id, user_id, component_type, component_id, tokens, cost)"
    " SELECT run_id, user_id, component_type, component_id, cast(:tokens as bigint),"
    f" cast(:cost as bigint) FROM runs WHERE run_id = :run_id AND {IS_OPEN}"
    " ON CONFLICT (run_id) DO UPDATE SET tokens = excluded.tokens, cost = excluded.cost"
)

_FORGET = Sql(
    "DELETE FROM live_usage WHERE run_id IN (SELECT runs.run_id FROM runs, live_usage"
    " WHERE runs.run_id = live_usage.run_id AND runs.finished_at IS NOT NULL)"
)


class Used(NamedTuple):
    """The tokens and the cost of some runs, in billionths of a US dollar.

    Attributes:
        live_tokens, live_cost: the part of live runs.
    """

    tokens: int = 0
    cost: int = 0
    live_tokens: int = 0
    live_cost: int = 0
    unpriced_tokens: int = 0

    def add(self, other: Used) -> Used:
        """Return the sum with other usage."""
        return Used(*(one + another for one, another in zip(self, other, strict=True)))


@unit
def report(run_id: str, tokens: int, cost: int) -> Steps[None]:
    """Store what a live run has used so far; nothing if it has ended."""
    yield Statement(_REPORT, {"run_id": run_id, "tokens": tokens, "cost": cost})


@unit
def forget_ended() -> Steps[None]:
    """Delete the rows of runs that have ended: they do not count any more."""
    yield Statement(_FORGET, {})


@unit
def read_used(scope: UsageScope, by: tuple[str, ...], cost_of: CostOf) -> Steps[Mapping[str, Used]]:
    """Return what the runs of a scope have used, live ones included: by user, component, or all.

    Args:
        by: `("user_id",)`, `("component_id",)` or `()`; the keys are "" without a user.
    """
    # The live runs first: one that ends in between counts twice rather than not at all.
    conditions = Conditions().with_condition("finished_at IS NULL")
    for number, user in enumerate(scope.users):
        conditions = conditions.with_condition(
            f"coalesce(live_usage.user_id, '') = :user_{number}", **{f"user_{number}": user}
        )
    conditions = conditions.with_present(
        "live_usage.component_id = :component_id", component_id=scope.component_id
    )
    group = f"coalesce(live_usage.{by[0]}, '')" if by else "''"
    sql = Sql(
        f"SELECT {group}, cast(sum(tokens) as bigint), cast(sum(cost) as bigint) FROM live_usage"
        f" JOIN runs ON runs.run_id = live_usage.run_id WHERE {' AND '.join(conditions.texts)}"
        " GROUP BY 1"
    )
    used = {
        name: Used(tokens, cost, tokens, cost)
        for name, tokens, cost in (yield Statement(sql, conditions.values))
    }
    ended = yield from usage_reads.read_groups(scope, by, cost_of)
    for key, sums in ended.items():
        name = str(key[0]) if key else ""
        used[name] = used.get(name, Used()).add(_convert(sums))
    return used


def _convert(sums: Sums) -> Used:
    return Used(sums.total_tokens, sums.cost, unpriced_tokens=sums.unpriced_tokens)
