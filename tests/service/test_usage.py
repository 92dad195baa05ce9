"""Usage: sums equal the records of all runs, and a user sees nothing of others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agentctl.auth.principal import Principal
from agentctl.errors import Forbidden, ValidationFailed
from agentctl.interface.requests import CancelRequest, Page, RunFilter, RunRequest
from agentctl.interface.requests.administration import OverviewFilter, UsageFilter
from agentctl.records.times import DAY, HOUR, now, parse_rfc3339
from agentctl.runs.jobs.sweep import SWEEP_SECONDS
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.repositories import usage, usage_reads
from agentctl.store.repositories.usage import EndedRunUsage
from tests.kit.clock import pass_time_until
from tests.kit.command import stay_in_hour
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import ALL, admin, open_service, user, wait_for_running

LONG = bool(os.environ.get("AGENTCTL_TEST_LONG"))

RUNS, SERVICES = (10_000, 3) if LONG else (24, 2)

TOKENS = ("input_tokens", "output_tokens", "total_tokens", "cache_read_tokens", "reasoning_tokens")

EXTRA = """
[[models]]
id = "priced"
provider = "openai"
model = "echo"
base_url = "{url}"
price = {{ input = 2, output = 10, cached = 0.5 }}

[[models]]
id = "failing"
provider = "openai"
model = "http-500"
base_url = "{url}"
retries = 0
fallbacks = ["priced"]

[[agents]]
id = "clerk"
model = "priced"
summary = {{ every_runs = 1, model = "echo" }}

[[agents]]
id = "spare"
model = "failing"
"""

STARTED = (
    ("agent", "echo"), ("agent", "clerk"), ("agent", "spare"), ("agent", "http-500"),
    ("agent", "tool-add"), ("team", "desk"), ("workflow", "line"),
)  # fmt: skip


@pytest.fixture
def world(
    tmp_path: Path, model_endpoint: ModelEndpoint, databases: Mapping[str, str]
) -> Deployment:
    """A deployment with models that have a price, a fallback and background work."""
    url = model_endpoint.base_url
    return create_deployment(tmp_path, url, extra=EXTRA.format(url=url), databases=databases)


def reader(service: Service, subject: str | None = "me") -> ServiceOperations:
    """Return the operations of a user who may read usage."""
    return service.operations_for(Principal(subject=subject, scopes=ALL | {"usage:read"}))


async def read_records(operations: ServiceOperations, **filters: Any) -> list[dict[str, Any]]:
    """Return the records of all runs of a filter."""
    found = list[dict[str, Any]]()
    cursor = None
    while True:
        page = Page(limit=100, cursor=cursor)
        document: Any = (await operations.runs.list(RunFilter(page=page, **filters))).value
        found += document["data"]
        cursor = document["meta"]["next_cursor"]
        if cursor is None:
            return found


async def read_ended_records(service: Service) -> list[dict[str, Any]]:
    """Return the records of all runs, once the sessions of the clerk have their summaries."""
    records = list[dict[str, Any]]()

    async def have_all_ended() -> bool:
        records[:] = await read_records(admin(service))
        of_clerk = [run for run in records if run.get("agent_id") == "clerk"]
        summaries = sum(run["purpose"] == "summary" for run in of_clerk)
        return 2 * summaries == len(of_clerk) and all(run["finished_at"] for run in records)

    await wait_until(have_all_ended)
    return records


async def start_random_runs(services: list[Service], count: int) -> None:
    """Start runs of some users in turn on some services, and add ended ones to sums in between."""
    chosen = random.Random(7)

    async def start(number: int) -> None:
        service = chosen.choice(services)
        kind, component_id = STARTED[number % len(STARTED)]
        caller = chosen.choice(("ann", "bob", None))
        message = '{"a": 1, "b": 2}' if component_id == "tool-add" else "words " * (number % 9)
        request = RunRequest(f"{message} {number}")
        await user(service, caller).runs.create(kind, component_id, request)  # type: ignore[arg-type]
        if number % 5 == 0:
            await chosen.choice(services).hosting.sums.add_ended_runs()

    for first in range(0, count, 8):
        await asyncio.gather(*(start(number) for number in range(first, min(first + 8, count))))


async def cancel_one_run(service: Service) -> None:
    """Start a run of ann that hangs, and cancel it."""
    operations = user(service, "ann")
    request = RunRequest("hello", session_id="hanging", background=True)
    run: Any = (await operations.runs.create("agent", "hang", request)).value
    await wait_for_running(operations, session_id="hanging")
    cancel = CancelRequest(session_id="hanging", wait=30)
    await operations.runs.cancel("agent", "hang", run["run_id"], cancel)


def sum_records(records: list[dict[str, Any]]) -> dict[tuple[Any, ...], Counter[str]]:
    """Return the sums of the records by user and component."""
    sums: dict[tuple[Any, ...], Counter[str]] = {}
    for run in records:
        kind = next(kind for kind in ("agent", "team", "workflow") if run.get(f"{kind}_id"))
        counts = sums.setdefault((run["user_id"], kind, run[f"{kind}_id"]), Counter())
        counts.update({name: run["metrics"][name] or 0 for name in TOKENS})
        counts["member_runs" if run["parent_run_id"] else "runs"] += 1
        if run["parent_run_id"] is None:
            status = {"COMPLETED": "completed", "ERROR": "failed", "CANCELLED": "cancelled"}
            counts[status[run["status"]]] += 1
    return sums


def sum_models(records: list[dict[str, Any]]) -> dict[str, int]:
    """Return the tokens of each model, as the messages of the records have them."""
    tokens = Counter[str]()
    for run in records:
        for message in run["messages"]:
            if message["role"] == "assistant" and message["model"] is not None:
                tokens[message["model"]] += message["metrics"]["total_tokens"]
    return dict(tokens)


async def read_usage(operations: ServiceOperations, **filters: Any) -> dict[str, Any]:
    report: Any = (await operations.usage.get(UsageFilter(**filters))).value
    return dict(report)


async def read_overview(operations: ServiceOperations, **filters: Any) -> dict[str, Any]:
    record: Any = (await operations.usage.get_overview(OverviewFilter(**filters))).value
    return dict(record)


@unit
def _count_rows() -> Steps[dict[str, int]]:
    counts = {}
    for table in ("usage_ends", "usage_hourly", "usage_daily"):
        counts[table] = (yield Statement(Sql(f"SELECT count(*) FROM {table}")))[0][0]
    return counts


async def check_sums(service: Service, records: list[dict[str, Any]]) -> None:
    """Check the sums of all users against the records."""
    operations = admin(service)
    expected = sum_records(records)
    report = await read_usage(operations, by=("user", "component"))
    assert report["groups"] == len(report["data"]) == len(expected)
    for row in report["data"]:
        counts = expected[row["user_id"], row["component_type"], row["component_id"]]
        for name in (*TOKENS, "runs", "member_runs", "completed", "failed", "cancelled"):
            assert row[name] == counts[name], (name, row)
    of_models = await read_usage(operations, by=("model",))
    found = {row["model"]: row["total_tokens"] for row in of_models["data"]}
    assert {name: tokens for name, tokens in found.items() if tokens} == sum_models(records)
    calls = [
        call
        for run in records
        for call in (await operations.runs.list_model_calls(run["run_id"])).value["model_calls"]
    ]
    for row in of_models["data"]:
        costs = [call["cost"] for call in calls if call["model"] == row["model"]]
        if row["model"] == "priced":
            plain = row["input_tokens"] - row["cache_read_tokens"]
            dollars = 2 * plain + 10 * row["output_tokens"] + 0.5 * row["cache_read_tokens"]
            assert row["cost"] == pytest.approx(dollars / 1_000_000) == pytest.approx(sum(costs))
            assert row["unpriced_tokens"] == 0
        elif row["total_tokens"]:
            assert (row["cost"], row["unpriced_tokens"]) == (None, row["total_tokens"])
            assert set(costs) <= {None}


async def test_sums_of_several_services_equal_the_records(world: Deployment) -> None:
    async with contextlib.AsyncExitStack() as stack:
        services = [await stack.enter_async_context(open_service(world)) for _ in range(SERVICES)]
        one, other = services[:2]
        await start_random_runs(services, RUNS)
        await cancel_one_run(one)
        records = await read_ended_records(one)
        assert {run["purpose"] for run in records} == {None, "summary"}
        await check_sums(other, records)
        await asyncio.gather(*(service.hosting.sums.add_ended_runs() for service in services))
        await check_sums(one, records)
        rows = await one.hosting.databases.system.read(_count_rows())
        assert rows["usage_ends"] == 0
        assert rows["usage_hourly"] >= rows["usage_daily"] > 0


async def test_a_serving_process_adds_ended_runs_to_the_sums(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        await service.prepare()
        await user(service).runs.create("agent", "echo", RunRequest("hello"))
        database = service.hosting.databases.system

        async def is_added() -> bool:
            rows = await database.read(_count_rows())
            return rows["usage_ends"] == 0 and rows["usage_daily"] == 3

        await pass_time_until(is_added, SWEEP_SECONDS)


async def test_all_ended_runs_are_added_in_small_transactions(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "FOLD_ROWS", 1)
    async with open_service(deployment) as service:
        for _ in range(3):
            await user(service).runs.create("agent", "echo", RunRequest("hello"))
        await service.hosting.sums.add_ended_runs()

        rows = await service.hosting.databases.system.read(_count_rows())
        assert rows["usage_ends"] == 0
        assert (await read_usage(admin(service)))["total"]["runs"] == 3


async def test_each_point_of_an_overview_has_its_runs(world: Deployment) -> None:
    with stay_in_hour():
        await check_overview(world)


async def check_overview(world: Deployment) -> None:
    async with open_service(world) as service:
        await start_random_runs([service], 12)
        operations = admin(service)
        overview = await read_overview(operations, by="model")
        point = overview["points"][-1]
        total = overview["total"]
        assert len(overview["points"]) == 24
        assert {**total, "at": point["at"]} == point
        assert sum(cause["runs"] for cause in total["failures"]) == total["failed"] > 0
        assert total["duration"]["count"] == total["runs"]
        assert 0 < total["first_token"]["p50"] <= total["duration"]["p99"]
        assert sum(group["runs"] for group in overview["data"]) == total["runs"]

        async def count(**filters: Any) -> int:
            start = parse_rfc3339(point["at"])
            ended = {"finished_after": start, "finished_before": start + HOUR, "parent": "none"}
            page = await operations.runs.list(RunFilter(**ended, **filters))
            return page.value["meta"]["total_count"]

        assert await count() == total["runs"]
        assert await count(status="ERROR") == total["failed"]
        for cause in total["failures"]:
            assert await count(error_code=cause["error_code"]) == cause["runs"]
        for group in overview["data"]:
            if group["model"] is not None:
                assert await count(model=group["model"]) == group["runs"]
        assert await count(component_type="team", component_id="desk") == next(
            group["runs"]
            for group in (await read_overview(operations))["data"]
            if group["component_id"] == "desk"
        )


async def test_a_user_reads_only_its_own_usage(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        for caller, number in (("ann", 1), ("bob", 2), (None, 3)):
            for _ in range(number):
                await user(service, caller).runs.create("agent", "echo", RunRequest("hello"))
        for _ in range(2):  # from the rows of ended runs, and from the sums
            for caller, number in (("ann", 1), ("bob", 2), (None, 3)):
                own = reader(service, caller)
                report = await read_usage(own, by=("user", "model"))
                assert [row["user_id"] for row in report["data"]] == [caller]
                assert report["total"]["runs"] == number
                assert (await read_overview(own, by="user"))["groups"] == 1
                assert (await read_overview(own))["total"]["runs"] == number
                hidden = await read_usage(own, user_id="bob" if caller == "ann" else "ann")
                assert hidden["total"]["runs"] == hidden["groups"] == 0
            every = await read_usage(admin(service), by=("user",))
            runs = {row["user_id"]: row["runs"] for row in every["data"]}
            assert runs == {"ann": 1, "bob": 2, None: 3}
            of_bob = await read_usage(admin(service), user_id="bob", by=())
            assert (of_bob["total"]["runs"], of_bob["groups"]) == (2, 1)
            await service.hosting.sums.add_ended_runs()
        with pytest.raises(Forbidden):
            await user(service, "ann").usage.get(UsageFilter())
        with pytest.raises(Forbidden):
            await user(service, "ann").usage.get_overview(OverviewFilter())


async def test_runs_of_an_earlier_version_are_counted_later(world: Deployment) -> None:
    uncount = Sql("UPDATE runs SET counted = 0, model = NULL")
    drop = [Sql(f"DELETE FROM {table}") for table in ("usage_ends", "usage_hourly", "usage_daily")]
    async with open_service(world) as service:
        await start_random_runs([service], 9)
        await read_ended_records(service)
        database = service.hosting.databases.system
        before = await read_usage(admin(service), by=("user", "component"))
        for statement in (uncount, *drop):
            await database.write(statement.execute())
        assert (await read_usage(admin(service)))["total"]["runs"] == 0
        sums = service.hosting.sums
        await asyncio.gather(sums.count_earlier_runs(30), sums.count_earlier_runs(30))
        assert await read_usage(admin(service), by=("user", "component")) == before
        models = {row["model"] for row in (await read_usage(admin(service), by=("model",)))["data"]}
        assert {"echo", "priced", "delegate"} <= models


async def test_wrong_filters_of_usage_are_refused(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = admin(service)
        for wrong in (
            UsageFilter(by=("week",)),  # type: ignore[arg-type]
            UsageFilter(limit=0),
            UsageFilter(limit=1_001),
            UsageFilter(since=HOUR * 48, before=HOUR * 24),
            UsageFilter(model="a\0"),
        ):
            with pytest.raises(ValidationFailed):
                await operations.usage.get(wrong)
        with pytest.raises(ValidationFailed, match="1000 hours"):
            await operations.usage.get_overview(OverviewFilter(since=0))
        with pytest.raises(ValidationFailed, match="model needs"):
            await operations.runs.list(RunFilter(model="echo"))


async def read_users(service: Service, before: int | None) -> tuple[Counter[str], list[Any]]:
    """Return the tokens of users in all reports of a year, and the ends of these reports."""
    port = admin(service)
    found = Counter[str]()
    ends = list[Any]()
    since = now() - 365 * DAY
    while True:
        report = (
            await port.usage.get(UsageFilter(by=("user",), since=since, before=before, limit=1_000))
        ).value
        for row in report["data"]:
            found[row["user_id"] or ""] += row["total_tokens"]
        assert report["total"]["total_tokens"] == sum(row["total_tokens"] for row in report["data"])
        ends.append(report["next_before"])
        if report["next_before"] is None:
            return found, ends
        assert report["next_before"] == report["since"]
        before = parse_rfc3339(report["next_before"])


def end_run(user_id: str | None, *, days_ago: int) -> EndedRunUsage:
    """Return the usage of a run of some user, with a token more than the days since its end."""
    at = now() - days_ago * DAY
    return EndedRunUsage(
        is_root=1,
        user_id=user_id,
        component_type="agent",
        component_id="echo",
        status="COMPLETED",
        error_code=None,
        created_at=at,
        finished_at=at,
        first_token_at=None,
        model="m",
        model_calls=1,
        metrics=f'{{"total_tokens": {days_ago + 1}}}',
        model_metrics=None,
        version=None,
    )


ENDED_DAYS_AGO = range(0, 300, 7)
"""The days on which six users have a run each."""


def list_users(days_ago: int) -> tuple[str | None, ...]:
    """Return the users of a day: three of every day, and three of this one."""
    return (None, "ann", "bob", *(f"user-{days_ago + number}" for number in range(3)))


@unit
def add_ended_runs() -> Steps[None]:
    columns = ", ".join(EndedRunUsage._fields)
    values = ", ".join(f":{name}" for name in EndedRunUsage._fields)
    add = Sql(f"INSERT INTO usage_ends ({columns}) VALUES ({values})")
    for days_ago in ENDED_DAYS_AGO:
        for user_id in list_users(days_ago):
            yield Statement(add, end_run(user_id, days_ago=days_ago)._asdict())


@contextlib.asynccontextmanager
async def open_with_ended_runs(deployment: Deployment) -> AsyncIterator[Service]:
    """Open a service whose sums have a run of each user of `ENDED_DAYS_AGO`."""
    async with open_service(deployment) as service:
        await service.hosting.databases["main"].write(add_ended_runs())
        await service.hosting.sums.add_ended_runs()
        yield service


async def test_report_of_many_users_continues_before_its_beginning(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_with_ended_runs(deployment) as service:
        whole, ends = await read_users(service, None)
        assert ends == [None]

        monkeypatch.setattr(usage_reads, "MAXIMUM_SUMS", 25)
        of_parts, ends = await read_users(service, None)
        assert of_parts == whole
        assert len(ends) > 10

        # A day with more sums than a part has is read as a whole.
        monkeypatch.setattr(usage_reads, "MAXIMUM_SUMS", 2)
        of_days, _ = await read_users(service, None)
        assert of_days == whole


async def test_overview_of_many_users_continues_before_its_beginning(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_reads, "MAXIMUM_SUMS", 2)
    async with open_with_ended_runs(deployment) as service:
        wanted = OverviewFilter(step="day", by="user", since=now() - 100 * DAY)
        overview: Any = (await admin(service).usage.get_overview(wanted)).value

    # The part has the users of its only day with runs, which is today.
    assert {row["user_id"] for row in overview["data"]} <= set(list_users(0))
    assert overview["next_before"] == overview["points"][-1]["at"]
    # The total has those of all days: fifteen weeks with six users.
    assert overview["total"]["runs"] == 15 * 6


async def test_sums_of_an_anonymised_user_are_those_of_nobody(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_with_ended_runs(deployment) as service:
        expected, _ = await read_users(service, None)
        expected[""] += expected.pop("ann")

        monkeypatch.setattr(usage_reads, "MAXIMUM_SUMS", 2)
        database = service.hosting.databases["main"]
        while any((await database.write(usage.anonymise("ann"))).values()):
            pass

        found, _ = await read_users(service, None)
        assert found == expected
