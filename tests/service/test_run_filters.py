"""Lists of runs: the filters by state and by time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.requests import CancelRequest, Page, RunFilter, RunRequest, SessionFilter
from agentctl.interface.requests.approvals import ApprovalFilter
from agentctl.records.times import parse_rfc3339
from agentctl.service.service import ServiceOperations
from tests.kit.deployment import Deployment
from tests.kit.service import admin, open_service, user, wait_for_running


async def list_run_ids(operations: ServiceOperations, **filters: Any) -> list[str]:
    """Return the list_run_ids of all pages of `get_runs`, oldest first."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = Page(limit=2, sort_order="asc", cursor=cursor)
        part = (await operations.runs.list(RunFilter(**filters, page=page))).value
        found += [run["run_id"] for run in part["data"]]
        cursor = part["meta"]["next_cursor"]
        if cursor is None:
            assert part["meta"]["total_count"] == len(found)
            return found


async def test_live_filter_returns_live_runs_only(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.runs.create("agent", "echo", RunRequest("x", session_id="s1"))
        hanging = asyncio.create_task(
            operations.runs.create("agent", "hang", RunRequest("x", session_id="s2"))
        )
        run_id = (await wait_for_running(operations))["run_id"]
        assert await list_run_ids(operations, live=True) == [run_id]
        assert await list_run_ids(admin(service), live=True, session_id="s2") == [run_id]
        assert await list_run_ids(operations, live=True, session_id="s1") == []
        assert await list_run_ids(user(service, "other"), live=True) == []
        for agent, expected in (("hang", [run_id]), ("echo", [])):
            listed = await operations.runs.list_of_component("agent", agent, RunFilter(live=True))
            assert [run["run_id"] for run in listed.value["data"]] == expected
        await operations.runs.cancel("agent", "hang", run_id, CancelRequest("s2", wait=30))
        assert await list_run_ids(operations, live=True) == []
        await hanging


async def test_created_filters_are_inclusive_and_exclusive(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        made = [
            (
                await operations.runs.create("agent", "echo", RunRequest(f"{n}", session_id="s1"))
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
        listed = await operations.runs.list_of_component("agent", "echo", span)
        assert [run["run_id"] for run in listed.value["data"]] == of[:1]


async def test_runs_are_counted_by_the_time_of_their_end(deployment: Deployment) -> None:
    """A total is that of all runs, however few of them are on the page."""
    async with open_service(deployment) as service:
        operations = user(service)

        async def count(**filters: Any) -> int:
            page = await operations.runs.list(RunFilter(**filters, page=Page(limit=1)))
            return page.value["meta"]["total_count"]

        failing = [
            operations.runs.create("agent", "http-500", RunRequest("x", session_id=f"f{n}"))
            for n in range(2)
        ]
        failed = [run.value for run in await asyncio.gather(*failing)]
        for n in range(3):
            await operations.runs.create("agent", "echo", RunRequest(f"{n}", session_id="s1"))
        since = min(parse_rfc3339(str(run["finished_at"])) for run in failed)
        last = max(parse_rfc3339(str(run["finished_at"])) for run in failed)
        assert await count(finished_after=since) == 5
        assert await count(finished_after=since, status="ERROR") == 2
        assert await count(finished_after=since, status="COMPLETED") == 3
        assert await count(finished_after=last + 1) == 3
        assert await count(finished_after=last + 1, status="ERROR") == 0
        listed = await operations.runs.list_of_component(
            "agent", "echo", RunFilter(finished_after=last + 1, created_after=since)
        )
        assert [run["input"] for run in listed.value["data"]] == ["2", "1", "0"]


NEVER_RUNS = (
    (RunFilter(status="RUNNING", live=True), "live and status cannot be used together"),
    (RunFilter(live=True, search="x"), "live and search cannot be used together"),
    (RunFilter(status="PAUSED", search="x"), "status PAUSED and search cannot be used together"),
    (RunFilter(live=True, error_code="X"), "live and error_code cannot be used together"),
    (
        RunFilter(status="PENDING", at_work=True),
        "status PENDING and at_work cannot be used together",
    ),
    (RunFilter(live=True, finished_after=1), "live and finished_after cannot be used together"),
    (
        RunFilter(status="RUNNING", model="m", created_after=1),
        "status RUNNING and model cannot be used together",
    ),
    (RunFilter(status="COMPLETED", error="x"), "error finds failed runs only"),
    (RunFilter(created_after=2, created_before=2), "created_after must be earlier"),
    (RunFilter(finished_after=2, finished_before=1), "finished_after must be earlier"),
    (RunFilter(created_after=2, finished_before=2), "must be earlier than finished_before"),
)

NEVER_SESSIONS = (
    (SessionFilter(status="COMPLETED", error="x"), "error finds failed sessions only"),
    (SessionFilter(created_after=2, created_before=1), "created_after must be earlier"),
    (SessionFilter(created_after=2, updated_before=2), "must be earlier than updated_before"),
    (SessionFilter(updated_after=2, updated_before=2), "updated_after must be earlier"),
)


async def test_filters_that_no_row_can_match_are_refused(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = admin(service)
        for runs, text in NEVER_RUNS:
            with pytest.raises(errors.ValidationFailed, match=text):
                await operations.runs.list(runs)
            with pytest.raises(errors.ValidationFailed, match=text):
                await operations.runs.list_of_component("agent", "echo", runs)
        for sessions, text in NEVER_SESSIONS:
            with pytest.raises(errors.ValidationFailed, match=text):
                await operations.sessions.list(sessions)
        for status in ("pending", "rejected", "expired", "cancelled"):
            with pytest.raises(errors.ValidationFailed, match="execution cannot be used together"):
                await operations.approvals.list(ApprovalFilter(status=status, execution="done"))
        # Bounds next to each other, and the statuses that match.
        await operations.runs.list(RunFilter(created_after=1, created_before=2, live=True))
        await operations.runs.list(RunFilter(status="ERROR", error="x", finished_after=1))
        await operations.approvals.list(ApprovalFilter(status="answered", execution="failed"))


async def test_run_record_has_the_time_its_work_stopped(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        run = (await user(service).runs.create("agent", "echo", RunRequest("x"))).value
        assert run["stopped_at"] == run["finished_at"]
        assert run["late_result"] is None
