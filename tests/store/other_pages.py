"""The reads of a generated database besides the lists of runs and sessions.

`tests.store.blocks` counts their blocks. Lists are read with each filter and with each two filters,
of everyone and of the dense user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import combinations, product
from typing import Any, NamedTuple

from agentctl.interface.requests import SUMMARY_VIEW, RunFilter, SessionFilter
from agentctl.interface.requests.administration import (
    AccountFilter,
    AuditFilter,
    DeliveryFilter,
    OverviewFilter,
)
from agentctl.interface.requests.approvals import ApprovalFilter
from agentctl.interface.requests.files import FileFilter
from agentctl.interface.requests.halts import HaltFilter
from agentctl.interface.requests.memories import MemoryFilter
from agentctl.records.times import DAY
from agentctl.service.operations.usage import _read_overview, _read_report
from agentctl.store.database import Work
from agentctl.store.listing import Conditions, Cursor, Slice
from agentctl.store.repositories import (
    accounts,
    approvals,
    audit,
    files,
    halts,
    lists,
    memories,
    personal_data,
    quotas,
    retention,
    run_reads,
    usage,
    webhooks,
    workers,
)
from agentctl.store.repositories.retention import IdleSessions
from agentctl.store.repositories.search_pages import WordSearch
from agentctl.store.repositories.usage_reads import UsageScope
from agentctl.store.search import parse_search
from agentctl.store.visibility import EVERYONE, Visibility
from tests.generated.population import COMPONENTS, DENSE_USER, START, YEAR

DENSE = Visibility(False, DENSE_USER)
SMALL = Visibility(False, "user-50")
MIDDLE = (START + YEAR // 2, "")
END = START + YEAR

VALUES: dict[str, tuple[Any, ...]] = {
    "component_id": (COMPONENTS[0][1], "absent"),
    "agent_id": (COMPONENTS[0][1], "absent"),
    "team_id": ("absent",),
    "user_id": (DENSE_USER, "absent"),
    "principal": (DENSE_USER, "absent"),
    "operation": ("cancel_run", "absent"),
    "tool_name": ("deploy", "absent"),
    "webhook_id": ("orders", "absent"),
    "topics": (("food",), ("absent",)),
    "search_content": ("likes", "absent"),
    "created_before": (START + YEAR // 2,),
    "created_after": (START + YEAR // 2,),
    "since": (START + YEAR // 2,),
    "status": ("pending", "rejected"),
    "execution": ("unknown", "done"),
    "kind": ("outcome", "input"),
    "policy": ("other",),
    "webhooks.state": ("dead", "delivered", "waiting"),
    "halts.state": ("active", "ended"),
    "outcome": ("denied", "allowed"),
    "scope": ("agent", "all"),
    "scope_id": (COMPONENTS[0][1], "absent"),
    "name": ("absent",),
    "id_prefix": ("absent00", "0"),
}
"""Values of the filters, or of those of a group; others are an absent text."""

_PARTS = {"page", "form", "where", "db_id", "limit", "cursor"}


_Query = Callable[[dict[str, Any], Visibility, Slice], Work[Any]]


class Read(NamedTuple):
    """A read: its group in tables, its text, and the unit."""

    group: str
    text: str
    build: Callable[[], Work[Any]]

    def __str__(self) -> str:
        return f"{self.group}: {self.text}"


def build_reads(*, is_sqlite: bool, every: bool = True) -> Iterator[Read]:
    """Yield all reads.

    Args:
        every: with all values of two filters, and these for one user and after a cursor.
    """
    yield from _build_lists(every)
    for owner, name in ((EVERYONE, "everyone"), (DENSE, "one user"), (SMALL, "a small user")):
        yield from _build_usage(owner, name)
        yield from _build_search(owner, name, is_sqlite)
        yield from _build_idle(owner, name)
    for user in (DENSE_USER, "user-1", "absent"):
        for table in personal_data.PERSONAL_TABLES:
            work = personal_data.count_rows(user, table)
            yield Read("data of a user", f"count {table.name} {user}", lambda work=work: work)
        yield Read("held sessions", user, lambda user=user: personal_data.find_open(user))
        for name, read in (
            ("open runs", personal_data.list_open_runs(user)),
            ("days", personal_data.list_days(user, -1, 30)),
            ("decisions", personal_data.find_decisions(user, "")),
            ("deliveries", personal_data.find_deliveries(user, "")),
            ("deleted", personal_data.find_deliveries(user, "", of_deleted=True)),
            ("audit", personal_data.find_audit_entries(user, 0)),
        ):
            yield Read("data of a user", f"{name} {user}", lambda read=read: read)
    for group, name, work in (
        ("webhooks", "states", webhooks.count_by_state()),
        ("webhooks", "old", webhooks.has_older(0, 0)),
        ("webhooks", "number", webhooks.count()),
        ("approvals", "waiting", approvals.count_waiting()),
        ("approvals", "due", approvals.list_due(END)),
        ("approvals", "decided", approvals.list_decided(START, 100)),
        ("memories", "topics", memories.list_topics(EVERYONE, None)),
        ("memories", "topics of a user", memories.list_topics(EVERYONE, DENSE_USER)),
        ("memories", "search", memories.search(DENSE_USER, "likes food", 20)),
        ("audit", "heads", audit.list_heads(100, 100)),
        ("audit", "old", audit.has_older(START)),
        ("usage", "old hours", usage.has_older_hours(START)),
        ("usage", "uncounted", usage.has_uncounted()),
        ("workers", "live runs", run_reads.count_live_by_owner()),
        ("workers", "time", workers.get_newest_time()),
    ):
        yield Read(group, name, lambda work=work: work)


def _build_lists(every: bool) -> Iterator[Read]:
    pages: dict[str, tuple[type[Any], _Query]] = {
        "audit": (
            AuditFilter,
            lambda given, owner, part: audit.list_page(
                AuditFilter(**given), None if part.after is None else 10_000
            ),
        ),
        "approvals": (
            ApprovalFilter,
            lambda given, owner, part: approvals.list_page(
                ApprovalFilter(**given), owner, Conditions(), part
            ),
        ),
        "files": (
            FileFilter,
            lambda given, owner, part: files.list_page(
                owner, given.get("user_id"), given.get("session_id"), part
            ),
        ),
        "halts": (
            HaltFilter,
            lambda given, owner, part: halts.list_page(HaltFilter(**given), part),
        ),
        "memories": (
            MemoryFilter,
            lambda given, owner, part: memories.list_page(MemoryFilter(**given), owner, part),
        ),
        "webhooks": (
            DeliveryFilter,
            lambda given, owner, part: webhooks.list_page(DeliveryFilter(**given), part),
        ),
        "accounts": (
            AccountFilter,
            lambda given, owner, part: accounts.list_page(AccountFilter(**given), part),
        ),
    }
    for group, (request, query) in pages.items():
        names = [field.name for field in fields(request) if field.name not in _PARTS]
        values = {
            name: VALUES.get(f"{group}.{name}", VALUES.get(name, ("absent",))) for name in names
        }
        singles = [{}, *({name: value} for name in names for value in values[name])]
        pairs = [
            {first: one, second: other}
            for first, second in combinations(names, 2)
            for one in values[first][: None if every else 1]
            for other in values[second][: None if every else 1]
        ]
        owners = (EVERYONE, DENSE) if group in ("approvals", "files", "memories") else (EVERYONE,)
        for number, filters in enumerate(singles + pairs):
            whole = every or number < len(singles)
            for owner in owners if whole else owners[-1:]:
                for after in (None, MIDDLE) if whole else (None,):
                    yield _build_page(group, query, filters, owner, after)


def _build_page(
    group: str, query: _Query, filters: dict[str, Any], owner: Visibility, after: Cursor | None
) -> Read:
    # A cursor has the total of the first page.
    total = None if after is None else (5, True)
    part = Slice("created_at", "desc", 20, after=after, total=total)
    texts = [f"{name}={value}" for name, value in filters.items()]
    texts += ["" if owner.everyone else "own", "later" * bool(after)]
    return Read(group, " ".join(texts), lambda: query(filters, owner, part))


def _build_usage(owner: Visibility, name: str) -> Iterator[Read]:
    def scope(step: Any, days: int, **given: Any) -> UsageScope:
        return UsageScope(step, END - days * DAY, END, owner, **given)

    filters: tuple[dict[str, Any], ...] = (
        {}, {"component_id": COMPONENTS[0][1]}, {"component_id": "absent"}, {"model": "absent"},
        {"user_id": "user-1"}, {"user_id": "absent"},
    )  # fmt: skip
    for days in (30, 365):
        for given in filters:
            for by in (("start",), ("user_id",), ("component_type", "component_id"), ("model",)):
                text = f"{days} days by {by[0]} {given} {name}"
                yield Read(
                    "usage",
                    text,
                    lambda days=days, given=given, by=by: _read_report(
                        scope("day", days, **given), by, _cost
                    ),
                )
    for step, days in (("hour", 1), ("hour", 30), ("day", 30), ("day", 365)):
        for by in ("component", "user", "model"):
            yield Read(
                "overview",
                f"{days} days by {step} and {by} {name}",
                lambda step=step, days=days, by=by: _read_overview(
                    scope(step, days), OverviewFilter(step=step, by=by), _cost
                ),
            )
    for days in (1, 30):
        for by in ((), ("user_id",), ("component_id",)):
            yield Read(
                "budgets",
                f"{days} days by {by} {name}",
                lambda days=days, by=by: quotas.read_used(scope("day", days), by, _cost),
            )


def _cost(model: str, counters: Any) -> int | None:
    return 0


_SEARCHED = (SessionFilter(), SessionFilter(component_id="absent"))


def _build_search(owner: Visibility, name: str, is_sqlite: bool) -> Iterator[Read]:
    words = ("invoices", "incident", "absent", "migrated 1", "quest* invoices")
    for text, chosen, after in product(words, _SEARCHED, (None, MIDDLE)):
        part = Slice("created_at", "desc", 20, after=after)
        search = WordSearch(parse_search(text, "words"), is_sqlite)
        yield Read(
            "search",
            f"{text} {chosen.component_id} {name} {'later' * bool(after)}",
            lambda search=search, chosen=chosen, part=part: lists.list_sessions(
                chosen, owner, part, search=search
            ),
        )
    for text in ("invoices", "absent"):
        search = WordSearch(parse_search(text, "words"), is_sqlite)
        for of_runs in (RunFilter(), RunFilter(component_id="absent", form=SUMMARY_VIEW)):
            yield Read(
                "search",
                f"runs {text} {name} {of_runs.component_id}",
                lambda search=search, chosen=of_runs: lists.list_runs(
                    chosen, owner, Slice(), search=search
                ),
            )


def _build_idle(owner: Visibility, name: str) -> Iterator[Read]:
    for before in (START + YEAR // 50, END):
        for given in ({}, {"component_id": "absent"}, {"session_type": "team"}, {"without": True}):
            given = {**given}
            without = bool(given.pop("without", False))
            choice = IdleSessions(before, visibility=owner, without_component=without, **given)
            yield Read(
                "retention",
                f"{given} {without} {name}",
                lambda choice=choice: retention.list_idle(choice, 50),
            )
