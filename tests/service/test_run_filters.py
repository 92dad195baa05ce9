"""Lists of runs: the filters by state and by time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.requests import CancelRequest, Page, RunFilter, RunRequest
from agentctl.records.times import parse_rfc3339
from agentctl.service.service import ServiceOperations
from tests.deployment import Deployment
from tests.service.callers import admin, open_service, user, wait_for_running


async def list_run_ids(operations: ServiceOperations, **filters: Any) -> list[str]:
    """Return the list_run_ids of all pages of `get_runs`, oldest first."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = Page(limit=2, sort_order="asc", cursor=cursor)
        part = (await operations.get_runs(RunFilter(**filters, page=page))).value
        found += [run["run_id"] for run in part["data"]]
        cursor = part["meta"]["next_cursor"]
        if cursor is None:
            assert part["meta"]["total_count"] == len(found)
            return found


async def test_live_filter_returns_live_runs_only(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.create_run("agent", "echo", RunRequest("x", session_id="s1"))
        hanging = asyncio.create_task(
            operations.create_run("agent", "hang", RunRequest("x", session_id="s2"))
        )
        run_id = (await wait_for_running(operations))["run_id"]
        assert await list_run_ids(operations, live=True) == [run_id]
        assert await list_run_ids(admin(service), live=True, session_id="s2") == [run_id]
        assert await list_run_ids(operations, live=True, session_id="s1") == []
        assert await list_run_ids(user(service, "other"), live=True) == []
        for agent, expected in (("hang", [run_id]), ("echo", [])):
            listed = await operations.list_component_runs("agent", agent, RunFilter(live=True))
            assert [run["run_id"] for run in listed.value["data"]] == expected
        await operations.cancel_run("agent", "hang", run_id, CancelRequest("s2", wait=30))
        assert await list_run_ids(operations, live=True) == []
        await hanging


async def test_created_filters_are_inclusive_and_exclusive(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        made = [
            (
                await operations.create_run("agent", "echo", RunRequest(f"{n}", session_id="s1"))
            ).value
            for n in range(5)
        ]
        of = [run["run_id"] for run in made]
        at = [parse_rfc3339(run["created_at"]) for run in made]
        assert await list_run_ids(operations, created_after=at[2]) == of[2:]
        assert await list_run_ids(operations, created_before=at[2]) == of[:2]
        assert await list_run_ids(operations, created_after=at[1], created_before=at[4]) == of[1:4]
        assert await list_run_ids(operations, created_after=at[1], status="ERROR") == []
        assert await list_run_ids(operations, created_after=at[4] + 1) == []
        span = RunFilter(created_after=at[0], created_before=at[1])
        listed = await operations.list_component_runs("agent", "echo", span)
        assert [run["run_id"] for run in listed.value["data"]] == of[:1]


async def test_runs_are_counted_by_the_time_of_their_end(deployment: Deployment) -> None:
    """A total is that of all runs, however few of them are on the page."""
    async with open_service(deployment) as service:
        operations = user(service)

        async def count(**filters: Any) -> int:
            page = await operations.get_runs(RunFilter(**filters, page=Page(limit=1)))
            return page.value["meta"]["total_count"]

        failing = [
            operations.create_run("agent", "http-500", RunRequest("x", session_id=f"f{n}"))
            for n in range(2)
        ]
        failed = [run.value for run in await asyncio.gather(*failing)]
        for n in range(3):
            await operations.create_run("agent", "echo", RunRequest(f"{n}", session_id="s1"))
        since = min(parse_rfc3339(str(run["finished_at"])) for run in failed)
        last = max(parse_rfc3339(str(run["finished_at"])) for run in failed)
        assert await count(finished_after=since) == 5
        assert await count(finished_after=since, status="ERROR") == 2
        assert await count(finished_after=since, status="COMPLETED") == 3
        assert await count(finished_after=last + 1) == 3
        assert await count(finished_after=last + 1, status="ERROR") == 0
        assert await count(finished_after=since, live=True) == 0
        listed = await operations.list_component_runs(
            "agent", "echo", RunFilter(finished_after=last + 1, created_after=since)
        )
        assert [run["input"] for run in listed.value["data"]] == ["2", "1", "0"]


async def test_live_and_status_exclude_each_other(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        both = RunFilter(status="RUNNING", live=True)
        with pytest.raises(errors.ValidationFailed, match="live and status"):
            await operations.get_runs(both)
        with pytest.raises(errors.ValidationFailed, match="live and status"):
            await operations.list_component_runs("agent", "echo", both)


async def test_run_record_has_the_time_its_work_stopped(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        run = (await user(service).create_run("agent", "echo", RunRequest("x"))).value
        assert run["stopped_at"] == run["finished_at"]
        assert run["late_result"] is None
