"""Usage and budget records: tokens, cost, ends and times of runs (docs/contract.md "Usage")."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.records.kinds import ComponentKind
from agentctl.records.times import Timestamp

UsageKey = Literal["day", "user", "component", "model", "version", "session"]
"""The parts of the key of a group of sums."""

Step = Literal["hour", "day"]

BudgetState = Literal["open", "warning", "exceeded"]


class UsageCounts(TypedDict):
    """Sums of the runs that ended in a period.

    `runs` are those without a parent: `completed`, `failed` and `cancelled`. The other counters
    include the `member_runs` as well: the runs of members and steps, and background work.
    `unreported_runs` are those whose tokens no one has reported. `cost` is in US dollars, without
    the `unpriced_tokens`, whose price is not known; it is null if no price is known.
    """

    runs: int
    completed: int
    failed: int
    cancelled: int
    member_runs: int
    unreported_runs: int
    model_calls: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    unpriced_tokens: int
    cost: float | None


class UsageRow(UsageCounts):
    """The sums of one group, with a member for each part of its key.

    `day` is the date, in UTC. `user_id` and `model` may be null. By `session_id`, `model_calls` are
    not counted.
    """

    day: NotRequired[str]
    user_id: NotRequired[str | None]
    component_type: NotRequired[ComponentKind]
    component_id: NotRequired[str]
    model: NotRequired[str | None]
    version: NotRequired[str]
    session_id: NotRequired[str]


class UsageReport(TypedDict):
    """Usage by groups, from `since` to `before`: days in UTC.

    `total` includes every group, `data` at most `limit` of them. `groups` is their number. With
    very many sums a report begins later than requested: the request with `before` = `next_before`
    continues it; null if it is complete.
    """

    since: Timestamp
    before: Timestamp
    next_before: Timestamp | None
    by: list[UsageKey]
    total: UsageCounts
    groups: int
    data: list[UsageRow]


class Percentiles(TypedDict):
    """Percentiles of `count` durations in seconds, exact to 4.5%; null without durations."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None


class FailureCount(TypedDict):
    """The number of failed runs with an error code."""

    error_code: str
    runs: int


class OverviewCounts(UsageCounts):
    """Sums with the causes of failures and the times of runs.

    `failures` are the `failed` runs by error code, the most frequent first. `first_token` and
    `duration` are the times of `runs` from their request: to the first part of an answer, for runs
    that had one, and to the end.
    """

    failures: list[FailureCount]
    first_token: Percentiles
    duration: Percentiles


class OverviewPoint(OverviewCounts):
    """The sums of the hour or the day that begins `at` a time."""

    at: Timestamp


class OverviewGroup(OverviewCounts):
    """The sums of one component, model, user or version."""

    user_id: NotRequired[str | None]
    component_type: NotRequired[ComponentKind]
    component_id: NotRequired[str]
    model: NotRequired[str | None]
    version: NotRequired[str]


class WaitingRecord(TypedDict):
    """The pending approvals that wait for a person now, and the time of the oldest one."""

    approvals: int
    oldest_at: Timestamp | None


class OverviewRecord(TypedDict):
    """An overview from `since` to `before`, whole hours or days in UTC.

    `points` has every hour or day in order. `data` has the groups, the largest first, at most
    `limit` of them; `groups` is their number. With very many sums it begins later than
    requested, and `data` is of the time from `next_before` on; null if it is complete.
    """

    since: Timestamp
    before: Timestamp
    step: Step
    by: Literal["user", "component", "model", "version"]
    total: OverviewCounts
    points: list[OverviewPoint]
    groups: int
    next_before: Timestamp | None
    data: list[OverviewGroup]
    waiting: WaitingRecord


class BudgetRecord(TypedDict):
    """A budget in its present period, with what one user, one component or the server has used.

    `user_id` is the user of a budget per user, else null. `component_id` is the component of a
    budget per component, or the only component that counts; null for all. `limit`, `used` and
    `live` are tokens, or US dollars. `live` is the part of `used` of runs that have not ended.
    `state` is `warning` from `warn_at` on, or from 80% of the limit on. `limit` is the higher one
    that a person has approved, if any. `unpriced_tokens` do not count for a cost: their price is
    not known.
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
    state: BudgetState
    on_exceed: Literal["refuse", "stop", "ask"]
    warn_at: float | None
    unpriced_tokens: int
    since: Timestamp
    resets_at: Timestamp
