"""The operations on usage and on budgets (docs/contract.md "Usage", "Budgets")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast, get_args

from agentctl import errors
from agentctl.config.budgets import Budget
from agentctl.interface.requests.administration import MAXIMUM_GROUPS, OverviewFilter, UsageFilter
from agentctl.records.document import Document, build_document
from agentctl.records.text import check_texts
from agentctl.records.times import (
    DAY,
    EARLIEST,
    LATEST,
    find_percentile,
    format_optional_time,
    format_rfc3339,
    now,
)
from agentctl.records.usage import (
    BudgetRecord,
    BudgetState,
    OverviewCounts,
    OverviewGroup,
    OverviewPoint,
    OverviewRecord,
    Percentiles,
    Step,
    UsageCounts,
    UsageKey,
    UsageReport,
    UsageRow,
)
from agentctl.runs.gate.budget_periods import Period, build_key, find_limit_in_effect, find_warning
from agentctl.runs.gate.budgets import build_scope, find_period, measure
from agentctl.service.documents import paging
from agentctl.service.family import OperationFamily
from agentctl.store.database import Steps, Value, unit
from agentctl.store.repositories import budget_periods, quotas, usage_reads
from agentctl.store.repositories.budget_periods import PeriodRow
from agentctl.store.repositories.quotas import Used
from agentctl.store.repositories.usage import COUNTERS, NANODOLLARS, PERIODS, CostOf, SumKey, Sums
from agentctl.store.repositories.usage_reads import UsageScope, WaitingApprovals
from agentctl.store.visibility import EVERYONE, Visibility

DEFAULT_DAYS = 30
"""Days of a report, and of an overview by day, without `since`."""

MAXIMUM_POINTS = 1_000
"""Hours or days of an overview."""

SPARE_USERS = 20
"""Users that an overview reads besides the users that it shows.

Runs that have just ended can change their order.
"""

_COLUMNS: Mapping[UsageKey, tuple[str, ...]] = {
    "day": ("start",),
    "user": ("user_id",),
    "component": ("component_type", "component_id"),
    "model": ("model",),
    "version": ("version",),
    "session": ("session_id",),
}

_Groups = dict[tuple[Value, ...], Sums]


class UsageOperations(OperationFamily):
    """Reads of the sums of one database."""

    async def get(self, filter: UsageFilter) -> Document[UsageReport]:
        async with self.audit("get_usage"):
            by = tuple(dict.fromkeys(filter.by))
            if not set(by) <= set(get_args(UsageKey)):
                raise errors.ValidationFailed(f"by must be any of {', '.join(get_args(UsageKey))}")
            scope = self._build_scope("day", filter, DEFAULT_DAYS * DAY)
            self._check_versions(scope, by)
            if "session" in by and (len(by) > 1 or scope.version is not None):
                raise errors.ValidationFailed("session cannot be combined with other groups")

            columns = [column for key in by for column in _COLUMNS[key]]
            database = self.lookups.database(filter.db_id)
            if by == ("session",):
                work = usage_reads.read_sessions(scope)
                groups, total, since = await database.read(work, size="large")
            else:
                groups, total, since = await self.hosting.prices.run(
                    lambda cost_of: _read_report(scope, columns, cost_of), database.read
                )

            listed = _list_largest(groups, filter.limit)
            if "day" in by:
                listed.sort(key=lambda group: cast(int, group[columns.index("start")]))

            next_before = None
            if since > scope.since:
                # The sums were too many: another report has the earlier days.
                next_before = format_rfc3339(since)

            report = UsageReport(
                since=format_rfc3339(since),
                before=format_rfc3339(scope.before),
                next_before=next_before,
                by=list(by),
                total=_build_counts(total),
                groups=len(groups),
                data=[
                    cast(UsageRow, {**_name_group(columns, group), **_build_counts(groups[group])})
                    for group in listed
                ],
            )
            return build_document(report)

    async def get_overview(self, filter: OverviewFilter) -> Document[OverviewRecord]:
        async with self.audit("get_usage_overview"):
            period = DAY if filter.step == "hour" else DEFAULT_DAYS * DAY
            scope = self._build_scope(filter.step, filter, period)
            if scope.before - scope.since > MAXIMUM_POINTS * PERIODS[filter.step]:
                raise errors.ValidationFailed(
                    f"the period must have at most {MAXIMUM_POINTS} {filter.step}s"
                )

            self._check_versions(scope, (filter.by,))
            database = self.lookups.database(filter.db_id)
            overview = await self.hosting.prices.run(
                lambda cost_of: _read_overview(scope, filter, cost_of), database.read
            )

            columns = _COLUMNS[filter.by]
            total = Sums()
            for sums in overview.points.values():
                total.add(sums)
            begin = max(overview.since, overview.groups_since)
            next_before = None
            if begin > scope.since:
                next_before = format_rfc3339(begin)

            record = OverviewRecord(
                since=format_rfc3339(overview.since),
                before=format_rfc3339(scope.before),
                step=filter.step,
                by=filter.by,
                total=_build_overview(total),
                points=[
                    OverviewPoint(
                        at=format_rfc3339(start),
                        **_build_overview(overview.points.get(start, Sums())),
                    )
                    for start in range(overview.since, scope.before, PERIODS[filter.step])
                ],
                groups=overview.group_count,
                next_before=next_before,
                data=[
                    cast(OverviewGroup, {**_name_group(columns, group), **_build_overview(sums)})
                    for group, sums in overview.groups.items()
                ],
                waiting={
                    "approvals": overview.waiting.approvals,
                    "oldest_at": format_optional_time(overview.waiting.oldest_at),
                },
            )

            return build_document(record)

    def _build_scope(
        self, step: Step, filter: UsageFilter | OverviewFilter, period: int
    ) -> UsageScope:
        if not 1 <= filter.limit <= MAXIMUM_GROUPS:
            raise errors.ValidationFailed(f"limit must be a number from 1 to {MAXIMUM_GROUPS}")

        paging.check_filter(filter)

        # The last hour or day is whole, so that the present one is part of it.
        length = PERIODS[step]
        end = now() + 1 if filter.before is None else filter.before
        before = -(-end // length) * length
        since = before - period
        if filter.since is not None:
            since = filter.since // length * length

        # A report writes both, and no time beyond the years 1 to 9999 can be written.
        before = min(before, LATEST // length * length)
        since = max(since, EARLIEST)
        if since >= before:
            raise errors.ValidationFailed("since must be earlier than before")
        return UsageScope(
            step,
            since,
            before,
            self.lookups.visibility,
            user_id=filter.user_id,
            component_type=filter.component_type,
            component_id=filter.component_id,
            model=filter.model,
            version=filter.version,
        )

    def _check_versions(self, scope: UsageScope, by: Sequence[UsageKey]) -> None:
        """Refuse sums of versions of single users: there are none."""
        is_of_users = bool(scope.users) or "user" in by
        if is_of_users and (scope.version is not None or "version" in by):
            raise errors.ValidationFailed(
                "version counts the runs of all users together: it cannot be combined with users,"
                " and needs a caller who sees the data of all users"
            )


@unit
def _read_report(
    scope: UsageScope, columns: Sequence[str], cost_of: CostOf
) -> Steps[tuple[_Groups, Sums, int]]:
    """Read the largest groups, the sum of all groups, and the first day that was read."""
    grouped_scope = replace(scope, by_version="version" in columns)
    grouped_scope = yield from usage_reads.limit_to_newest(
        grouped_scope, by_user="user_id" in columns
    )
    groups = yield from usage_reads.read_groups(grouped_scope, columns, cost_of)

    total = Sums()
    if grouped_scope.by_version or len(groups) >= usage_reads.MAXIMUM_GROUPS:
        # The groups are not all, or leave out the runs without a version.
        whole_scope = replace(grouped_scope, by_version=False)
        whole_groups = yield from usage_reads.read_groups(whole_scope, (), cost_of)
        total = whole_groups.get((), total)
    else:
        for sums in groups.values():
            total.add(sums)

    return groups, total, grouped_scope.since


class _Overview(NamedTuple):
    """The sums of an overview."""

    since: int
    """The beginning of the first hour or day of `points`."""

    points: dict[int, Sums]
    """The sums of each hour or day, by its beginning."""

    groups: _Groups
    """The sums of the largest groups."""

    groups_since: int
    """The time from which `groups` count."""

    group_count: int
    """The number of all groups."""

    waiting: WaitingApprovals


@unit
def _read_overview(scope: UsageScope, filter: OverviewFilter, cost_of: CostOf) -> Steps[_Overview]:
    columns = _COLUMNS[filter.by]
    scope = yield from usage_reads.limit_to_newest(scope)
    sums_of_all = yield from usage_reads.read_sums(scope, cost_of)
    points = {cast(int, start): sums for (start,), sums in _group(sums_of_all, ("start",)).items()}

    sums_of_groups = sums_of_all
    grouped_scope = scope
    user_count = None
    if filter.by == "user" and not scope.users:
        grouped_scope = yield from usage_reads.limit_to_newest(scope, by_user=True)
        sums_of_groups, user_count = yield from usage_reads.read_largest_users(
            grouped_scope, cost_of, filter.limit + SPARE_USERS
        )
    elif filter.by == "version":
        grouped_scope = yield from usage_reads.limit_to_newest(replace(scope, by_version=True))
        sums_of_groups = yield from usage_reads.read_sums(grouped_scope, cost_of)

    groups = _group(sums_of_groups, columns)
    largest_groups = {group: groups[group] for group in _list_largest(groups, filter.limit)}
    group_count = len(groups) if user_count is None else user_count

    waiting = yield from usage_reads.count_approvals(scope.visibility)
    return _Overview(scope.since, points, largest_groups, grouped_scope.since, group_count, waiting)


def _group(pairs: Iterable[tuple[SumKey, Sums]], columns: Iterable[str]) -> _Groups:
    """Add the sums that have the same values in some columns of their keys."""
    groups: _Groups = {}
    for key, sums in pairs:
        group = tuple(getattr(key, name) for name in columns)
        groups.setdefault(group, Sums()).add(sums)
    return groups


def _list_largest(groups: _Groups, limit: int) -> list[tuple[Value, ...]]:
    return sorted(groups, key=lambda group: _sort_key(group, groups[group]))[:limit]


def _sort_key(group: tuple[Value, ...], sums: Sums) -> tuple[Any, ...]:
    runs = sums.completed + sums.failed + sums.cancelled + sums.member_runs
    return (-sums.total_tokens, -runs, group)


def _name_group(columns: Iterable[str], group: Iterable[Value]) -> dict[str, Any]:
    members = dict(zip(columns, group, strict=True))
    if "start" in members:
        start = members.pop("start")
        assert isinstance(start, int)
        members = {"day": format_rfc3339(start)[:10], **members}
    return {name: value or None for name, value in members.items()}


def _build_counts(sums: Sums) -> UsageCounts:
    counters: dict[str, Any] = {name: getattr(sums, name) for name in COUNTERS}
    # A price that is not known is no price of 0.
    is_unknown = sums.unpriced_tokens > 0 and sums.unpriced_tokens == sums.total_tokens
    counters["cost"] = None if is_unknown else sums.cost / NANODOLLARS
    runs = sums.completed + sums.failed + sums.cancelled
    return cast(UsageCounts, {"runs": runs, **counters})


def _build_overview(sums: Sums) -> OverviewCounts:
    failures = sorted(sums.failures.items(), key=lambda item: (-item[1], item[0]))
    return OverviewCounts(
        **_build_counts(sums),
        failures=[{"error_code": code, "runs": count} for code, count in failures],
        first_token=_build_percentiles(sums.first_token),
        duration=_build_percentiles(sums.duration),
    )


def _build_percentiles(counts: Mapping[str, int]) -> Percentiles:
    return Percentiles(
        count=sum(counts.values()),
        p50=find_percentile(counts, 0.5),
        p95=find_percentile(counts, 0.95),
        p99=find_percentile(counts, 0.99),
    )


WARNING = 0.8
"""The part of a limit from which on its budget is reported as nearly used up."""

MAXIMUM_ROWS = 100
"""Users or components of one budget that are listed, the largest first."""

_OWNER_COLUMNS = {"user": ("user_id",), "agent": ("component_id",), "server": ()}


class BudgetOperations(OperationFamily):
    """Reads of the budgets of the configuration."""

    async def list_budgets(self, *, user_id: str | None = None) -> Document[list[BudgetRecord]]:
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
        """List the use of a budget by the owners that the caller sees, the largest first."""
        period = find_period(budget)
        work = budget_periods.list_raised(budget.id, period.since)
        raised_limits = dict(await self.hosting.databases.system.read(work))

        if budget.per == "user" and (user_id is not None or not visibility.everyone):
            owner = user_id if visibility.everyone else visibility.user_id
            if not visibility.sees(owner) or user_id not in (None, owner):
                return []
            scope = build_scope(budget, period, owner, "")
            usage = await self._read_used(scope, ())
            used = usage.get("", Used())
            return [_build_row(budget, period, owner, used, raised_limits)]

        scope = UsageScope(
            "day", period.since, period.before, EVERYONE, component_id=budget.component or None
        )
        usage = await self._read_used(scope, _OWNER_COLUMNS[budget.per])
        if budget.per == "server":
            usage = {"": usage.get("", Used())}
        elif budget.component:
            # The only component that counts is listed even if it has used nothing.
            only_owner = budget.component if budget.per == "agent" else ""
            usage = {only_owner: Used(), **usage}

        largest_first = sorted(usage.items(), key=lambda item: (-measure(budget, item[1]), item[0]))
        return [
            _build_row(budget, period, name or None, used, raised_limits)
            for name, used in largest_first[:MAXIMUM_ROWS]
        ]

    async def _read_used(self, scope: UsageScope, by: tuple[str, ...]) -> Mapping[str, Used]:
        """Return what the runs of all databases have used, by the values of a column."""
        usage: dict[str, Used] = {}
        for database in self.hosting.databases.values():
            groups = await self.hosting.prices.run(
                lambda cost_of: quotas.read_used(scope, by, cost_of), database.read
            )
            for name, used in groups.items():
                usage[name] = usage.get(name, Used()).add(used)
        return usage


def _build_row(
    budget: Budget, period: Period, name: str | None, used: Used, raised_limits: Mapping[str, int]
) -> BudgetRecord:
    """Build the record of the use of a budget by one owner.

    Args:
        name: the user or the component; None for a budget of the whole server.
        raised_limits: the limits that decisions have raised in this period, by subject.
    """
    amount = measure(budget, used)
    key = build_key(budget, period, name, name or "")
    limit = find_limit_in_effect(budget, PeriodRow(raised_limits.get(key.subject)))

    warning = find_warning(budget)
    if warning is None:
        warning = WARNING * limit
    state: BudgetState = "open"
    if amount >= limit:
        state = "exceeded"
    elif amount >= warning:
        state = "warning"

    component_id = budget.component or None
    if budget.per == "agent" and name is not None:
        component_id = name

    return BudgetRecord(
        budget_id=budget.id,
        per=budget.per,
        user_id=name if budget.per == "user" else None,
        component_id=component_id,
        period=budget.period,
        unit=budget.unit,
        limit=limit,
        used=amount,
        live=used.live_tokens if budget.unit == "tokens" else used.live_cost / NANODOLLARS,
        state=state,
        on_exceed=budget.on_exceed,
        warn_at=find_warning(budget),
        unpriced_tokens=used.unpriced_tokens,
        since=format_rfc3339(period.since),
        resets_at=format_rfc3339(period.before),
    )
