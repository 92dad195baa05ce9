"""Lists of runs: what runs now, and what was started when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentctl import errors
from agentctl.operations import CancelRequest, Page, RunFilter, RunRequest
from agentctl.records.times import parse_rfc3339
from agentctl.service.service import ServiceOperations
from tests.deployment import Deployment
from tests.service.doors import boss, hosted, running, user


async def ids(port: ServiceOperations, **filters: Any) -> list[str]:
    """The runs of `get_runs`, oldest first, over as many pages as there are."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = Page(limit=2, sort_order="asc", cursor=cursor)
        part = (await port.get_runs(RunFilter(**filters, page=page))).value
        found += [run["run_id"] for run in part["data"]]
        cursor = part["meta"]["next_cursor"]
        if cursor is None:
            assert part["meta"]["total_count"] == len(found)
            return found


async def test_what_runs_now_is_listed_and_nothing_else(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        await port.create_run("agent", "echo", RunRequest("x", session_id="s1"))
        hanging = asyncio.create_task(
            port.create_run("agent", "hang", RunRequest("x", session_id="s2"))
        )
        run_id = (await running(port))["run_id"]
        assert await ids(port, live=True) == [run_id]
        assert await ids(boss(service), live=True, session_id="s2") == [run_id]
        assert await ids(port, live=True, session_id="s1") == []
        assert await ids(user(service, "other"), live=True) == []
        for agent, expected in (("hang", [run_id]), ("echo", [])):
            listed = await port.list_component_runs("agent", agent, RunFilter(live=True))
            assert [run["run_id"] for run in listed.value["data"]] == expected
        await port.cancel_run("agent", "hang", run_id, CancelRequest("s2", wait=10))
        assert await ids(port, live=True) == []
        await hanging


async def test_runs_are_found_by_the_time_they_were_created_at(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        made = [
            (await port.create_run("agent", "echo", RunRequest(f"{n}", session_id="s1"))).value
            for n in range(5)
        ]
        of = [run["run_id"] for run in made]
        at = [parse_rfc3339(run["created_at"]) for run in made]
        assert await ids(port, created_after=at[2]) == of[2:]
        assert await ids(port, created_before=at[2]) == of[:2]
        assert await ids(port, created_after=at[1], created_before=at[4]) == of[1:4]
        assert await ids(port, created_after=at[1], status="ERROR") == []
        assert await ids(port, created_after=at[4] + 1) == []
        span = RunFilter(created_after=at[0], created_before=at[1])
        listed = await port.list_component_runs("agent", "echo", span)
        assert [run["run_id"] for run in listed.value["data"]] == of[:1]


async def test_live_and_a_status_are_not_asked_for_together(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        both = RunFilter(status="RUNNING", live=True)
        with pytest.raises(errors.ValidationFailed, match="live and status"):
            await port.get_runs(both)
        with pytest.raises(errors.ValidationFailed, match="live and status"):
            await port.list_component_runs("agent", "echo", both)


async def test_a_run_says_when_its_work_stopped(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        run = (await user(service).create_run("agent", "echo", RunRequest("x"))).value
        assert run["stopped_at"] == run["finished_at"]
        assert run["late_result"] is None
