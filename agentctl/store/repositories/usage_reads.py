"""Reads of usage: the sums of a period with the rows that they do not include yet.

The cost of a read depends on the numbers of hours or days, components, models and users, not on the
number of runs; the number of users is bounded. The row of an ended run waits some seconds until it
is part of the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentctl.records.usage import Step
from agentctl.store.database import Sql, Statement, Steps, Value, single_unit, unit
from agentctl.store.listing import Conditions
from agentctl.store.repositories.sessions import parse_usage
from agentctl.store.repositories.usage import (
    COUNTERS,
    NANODOLLARS,
    OF_VERSIONS,
    PERIODS,
    STORED,
    TABLES,
    CostOf,
    EndedRunUsage,
    SumKey,
    Sums,
    build_stored,
    split_by_model,
)
from agentctl.store.visibility import IS_VISIBLE, Visibility

MAXIMUM_GROUPS = 10_000
"""Groups of sums that a read returns at most, the largest first."""


MAXIMUM_SUMS = 20_000
"""Sums of all users, or versions, that a read groups: the sums of the newest periods."""

MAXIMUM_TOTALS = 8_000
"""Sums of all users together, or of one user, that a read adds: the sums of the newest periods."""


MAXIMUM_RUNS = 20_000
"""Ended runs that a read by session adds: the newest ones."""


_IN_PERIOD = "start >= :since AND start < :before"


@dataclass(frozen=True, slots=True)
class UsageScope:
    """The runs whose sums are read."""

    step: Step

    since: int
    """Only runs that ended at this time or later; microseconds UTC, the beginning of a step."""

    before: int
    """Only runs that ended before this time; microseconds UTC, the beginning of a step."""

    visibility: Visibility

    user_id: str | None = None
    """Only runs of this user; None for all visible users."""

    component_type: str | None = None
    """Only runs of components of this type; None for all."""

    component_id: str | None = None
    """Only runs of this component; None for all."""

    model: str | None = None
    """Only runs of this model; None for all."""

    version: str | None = None
    """Only runs of this version of components."""

    by_version: bool = False
    """True to add up by version. These sums are of all users together."""

    @property
    def users(self) -> list[str]:
        """The users in the tables whose sums are read: empty for everyone; "" for no user."""
        own = [] if self.visibility.everyone else [self.visibility.user_id or ""]
        return own if self.user_id is None else [*own, self.user_id]

    @property
    def reads_versions(self) -> bool:
        """True if the sums by version are read."""
        return self.by_version or self.version is not None

    def conditions(self, *, by_user: bool) -> Conditions:
        """Return the conditions on the rows of a table of sums."""
        users = self.users
        conditions = Conditions()
        if self.reads_versions:
            conditions = conditions.with_condition(f"everyone = {OF_VERSIONS}")
        elif users or by_user:
            conditions = conditions.with_condition("everyone = 0")
        else:
            # With the user, so that the key is used, which does not have the sums of users.
            conditions = conditions.with_condition("everyone = 1").with_condition("user_id = ''")

        if self.version is not None:
            conditions = conditions.with_condition("user_id = :version", version=self.version)

        for number, user in enumerate(users):
            conditions = conditions.with_condition(
                f"user_id = :user_{number}", **{f"user_{number}": user}
            )

        return conditions.with_condition(
            _IN_PERIOD, since=self.since, before=self.before
        ).with_equal(
            component_type=self.component_type, component_id=self.component_id, model=self.model
        )

    def has(self, key: SumKey) -> bool:
        """Return True if the sums of one user with a key are among the sums that are read."""
        if not self.since <= key.start < self.before:
            return False
        if any(user != key.user_id for user in self.users):
            return False

        for name in ("component_type", "component_id", "model"):
            if getattr(self, name) not in (None, getattr(key, name)):
                return False
        return True


_WAITING = Sql(
    f"SELECT {', '.join(EndedRunUsage._fields)} FROM usage_ends"
    f" WHERE finished_at >= :since AND finished_at < :before AND {IS_VISIBLE}"
)

_SOURCES = {"version": "user_id"}
"""The columns of members of `SumKey` that have another name."""

_SUMS = ", ".join(f"cast(sum({name}) as bigint)" for name in COUNTERS)


@unit
def limit_to_newest(scope: UsageScope, *, by_user: bool = False) -> Steps[UsageScope]:
    """Return the newest hours or days of a scope with a bounded number of sums, at least one.

    Args:
        by_user: True if the sums of each user are read.
    """
    if (by_user or scope.by_version) and not scope.users:
        maximum = MAXIMUM_SUMS
        conditions = Conditions().with_condition(_IN_PERIOD, since=scope.since, before=scope.before)
    else:
        maximum = MAXIMUM_TOTALS
        unfiltered = replace(scope, component_type=None, component_id=None, model=None)
        conditions = unfiltered.conditions(by_user=False)

    sql = (
        f"SELECT start FROM {TABLES[scope.step]} WHERE {' AND '.join(conditions.texts)}"
        " ORDER BY start DESC LIMIT 1 OFFSET :read"
    )
    first_unread = yield Statement(Sql(sql), {**conditions.values, "read": maximum})

    if not first_unread:
        return scope

    period = PERIODS[scope.step]
    return replace(scope, since=min(first_unread[0][0] + period, scope.before - period))


@unit
def read_sessions(scope: UsageScope) -> Steps[tuple[dict[tuple[Value, ...], Sums], Sums, int]]:
    """Return the sums of each session, their total, and the time from which they count.

    There are no stored sums by session: at most `MAXIMUM_RUNS` rows of runs are read, with the cost
    that was stored at their ends.
    """
    conditions = (
        Conditions()
        .with_condition(
            "finished_at >= :since AND finished_at < :before",
            since=scope.since,
            before=scope.before,
        )
        .with_condition(IS_VISIBLE, **scope.visibility.parameters())
        .with_equal(
            user_id=scope.user_id,
            component_type=scope.component_type,
            component_id=scope.component_id,
            model=scope.model,
        )
    )
    sql = (
        "SELECT session_id, parent_run_id, status, metrics, finished_at FROM runs"
        f" WHERE {' AND '.join(conditions.texts)}"
        f" ORDER BY finished_at DESC LIMIT {MAXIMUM_RUNS + 1}"
    )
    rows = yield Statement(Sql(sql), conditions.values)

    since = scope.since
    if len(rows) > MAXIMUM_RUNS:
        # The runs that ended at the time of the last row may be incomplete.
        since = rows[-1][4] + 1
        rows = [row for row in rows if row[4] >= since]

    groups: dict[tuple[Value, ...], Sums] = {}
    total = Sums()
    for session_id, parent_run_id, status, metrics, _ in rows:
        sums = _count_run(status, metrics, is_root=parent_run_id is None)
        groups.setdefault((session_id,), Sums()).add(sums)
        total.add(sums)
    return groups, total, since


def _count_run(status: str, metrics: str | None, *, is_root: bool) -> Sums:
    """Return the sums of one ended run."""
    counters, cost = parse_usage(metrics)
    sums = Sums()
    for name, count in counters.items():
        if name in COUNTERS:
            setattr(sums, name, count)

    sums.cost = round(cost.cost * NANODOLLARS)
    sums.unpriced_tokens = max(sums.total_tokens - cost.priced_tokens, 0)

    if not is_root:
        sums.member_runs = 1
    elif status == "COMPLETED":
        sums.completed = 1
    elif status == "ERROR":
        sums.failed = 1
    else:
        sums.cancelled = 1

    return sums


@unit
def read_groups(
    scope: UsageScope, by: Sequence[str], cost_of: CostOf
) -> Steps[dict[tuple[Value, ...], Sums]]:
    """Return the counters of groups, at most `MAXIMUM_GROUPS` stored groups, without the counts.

    Args:
        by: members of `SumKey` whose values are the key of a group; empty for one group.
    """
    conditions = scope.conditions(by_user="user_id" in by)
    sources = [_SOURCES.get(name, name) for name in by]
    columns = "".join(f"{name}, " for name in sources)
    order = f" GROUP BY {', '.join(sources)} ORDER BY sum(total_tokens) DESC" if by else ""
    sql = Sql(
        f"SELECT {columns}{_SUMS} FROM {TABLES[scope.step]}"
        f" WHERE {' AND '.join(conditions.texts)}{order} LIMIT {MAXIMUM_GROUPS}"
    )

    groups: dict[tuple[Value, ...], Sums] = {}
    for row in (yield Statement(sql, conditions.values)):
        # Without a group there is a row of no sums.
        if row[-1] is not None:
            groups[tuple(row[: len(by)])] = Sums(*row[len(by) :])

    for key, sums in (yield from _read_waiting(scope, cost_of)):
        groups.setdefault(tuple(getattr(key, name) for name in by), Sums()).add(sums)

    return groups


@unit
def read_sums(scope: UsageScope, cost_of: CostOf) -> Steps[list[tuple[SumKey, Sums]]]:
    """Return all sums with their keys, in any order; a key may occur twice.

    The sums are of all users together, or of the one user of the scope.
    """
    conditions = scope.conditions(by_user=False)
    sql = Sql(
        f"SELECT {', '.join(STORED)} FROM {TABLES[scope.step]}"
        f" WHERE {' AND '.join(conditions.texts)}"
    )
    stored_sums = [build_stored(row) for row in (yield Statement(sql, conditions.values))]
    waiting_sums = yield from _read_waiting(scope, cost_of)
    return stored_sums + waiting_sums


@unit
def read_largest_users(
    scope: UsageScope, cost_of: CostOf, number: int
) -> Steps[tuple[list[tuple[SumKey, Sums]], int]]:
    """Return the sums of the users with the most stored tokens, and the number of all users.

    Rows that the sums do not include yet do not choose a user, unless all users are returned.
    """
    conditions = scope.conditions(by_user=True)
    # One read of the rows counts the tokens of each user, and returns the largest users.
    sql = Sql(
        f"WITH found AS MATERIALIZED (SELECT {', '.join(STORED)} FROM {TABLES[scope.step]}"
        f" WHERE {' AND '.join(conditions.texts)}), users AS MATERIALIZED (SELECT user_id,"
        " sum(total_tokens) AS tokens FROM found GROUP BY user_id)"
        f" SELECT {', '.join(STORED)}, (SELECT count(*) FROM users) FROM found WHERE user_id IN"
        " (SELECT user_id FROM users ORDER BY tokens DESC, user_id LIMIT :number)"
    )
    rows = yield Statement(sql, {**conditions.values, "number": number})

    stored_sums = [build_stored(row[:-1]) for row in rows]
    count = rows[0][-1] if rows else 0
    users = {key.user_id for key, _ in stored_sums}

    waiting_sums = yield from _read_waiting(scope, cost_of)
    if count <= number:
        count = len(users | {key.user_id for key, _ in waiting_sums})
    else:
        waiting_sums = [(key, sums) for key, sums in waiting_sums if key.user_id in users]

    return stored_sums + waiting_sums, count


@unit
def _read_waiting(scope: UsageScope, cost_of: CostOf) -> Steps[list[tuple[SumKey, Sums]]]:
    """Return the sums of the runs that wait until they are added to the stored sums."""
    values = {"since": scope.since, "before": scope.before, **scope.visibility.parameters()}
    rows = yield Statement(_WAITING, values)

    waiting_sums: list[tuple[SumKey, Sums]] = []
    for run in map(EndedRunUsage._make, rows):
        for key, sums in split_by_model(run, scope.step, cost_of):
            if not scope.has(key):
                continue
            if not scope.reads_versions:
                waiting_sums.append((key, sums))
            elif run.version is not None and scope.version in (None, run.version):
                waiting_sums.append((key.of_version(run.version), sums))
    return waiting_sums


class WaitingApprovals(NamedTuple):
    """The number of pending approvals, and the time of the oldest approval in microseconds UTC."""

    approvals: int
    oldest_at: int | None


@single_unit
def count_approvals(visibility: Visibility) -> Steps[WaitingApprovals]:
    """Count the pending approvals of the visible runs."""
    # The pending approvals of all users are few: the condition must not choose an index.
    conditions = visibility.conditions("user_id || ''").with_condition("status = 'pending'")
    sql = Sql(
        f"SELECT count(*), min(created_at) FROM approvals WHERE {' AND '.join(conditions.texts)}"
    )
    (row,) = yield Statement(sql, conditions.values)
    return WaitingApprovals(*row)
