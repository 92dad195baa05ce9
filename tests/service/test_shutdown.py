"""Shutdown of a service: drain, then cancel of the live runs with a recorded request."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agentctl import errors
from agentctl.interface.requests import RunRequest
from agentctl.records.runs import RunRecord
from agentctl.service.service import Service, ServiceOperations
from tests.kit.clock import pass_time, wait_for_timer
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.kit.service import open_service, user, wait_for_running

CALL_SECONDS = 200
"""The time of a call that ends when the test lets it pass; less than the limit of calls."""


async def test_closing_cancels_live_runs_with_a_request(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        request = RunRequest("x", session_id="s1", background=True)
        run_id = (await user(service).runs.create("agent", "hang", request)).value["run_id"]
        await wait_for_running(user(service))
    async with open_service(deployment) as service:
        run = (await user(service).runs.get(run_id)).value
        assert run["status"] == "CANCELLED"
        assert run["cancel_requested_by"] == "system:shutdown"


async def test_drain_finishes_runs_and_rejects_new_ones(deployment: Deployment) -> None:
    settings = deployment.settings
    patient = replace(settings, server=replace(settings.server, drain_seconds=1_000))
    async with Service.open(patient, create=True) as service:
        operations = user(service)
        request = RunRequest(f'{{"seconds": {CALL_SECONDS}}}', session_id="s1")
        run = asyncio.create_task(operations.runs.create("agent", "tool-wait", request))
        await wait_for_timer(CALL_SECONDS)

        draining = asyncio.create_task(service.drain())
        await wait_until(lambda: service.hosting.engine.draining)
        with pytest.raises(errors.Unavailable, match="shutting down"):
            await operations.runs.create("agent", "echo", RunRequest("x"))
        ready = (await operations.system.get_readiness()).value
        assert ready["status"] == "unavailable"
        assert ready["checks"]["runs"] == "failed"

        await pass_time(CALL_SECONDS)
        await draining
        assert (await run).value["status"] == "COMPLETED"


async def test_caller_that_leaves_early_leaves_no_live_run(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for pause in range(12):
            request = RunRequest("x", session_id="s1")
            leaving = asyncio.create_task(operations.runs.create("agent", "hang", request))
            for _ in range(pause):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
    # The closed service has waited for all pending starts.
    async with open_service(deployment) as service:
        runs = await _list_runs(user(service))
    assert {run["status"] for run in runs} <= {"CANCELLED"}
    assert {run["cancel_requested_by"] for run in runs} <= {"me"}


async def _list_runs(operations: ServiceOperations) -> list[RunRecord]:
    """Return the runs of session s1, if it exists."""
    try:
        return (await operations.sessions.list_runs("s1")).value
    except errors.NotFound:
        return []
