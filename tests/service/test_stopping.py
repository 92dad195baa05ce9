"""A service that ends: what runs may finish, what is left is cancelled, and says who did it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agentctl import errors
from agentctl.operations import RunRequest
from agentctl.records.runs import RunRecord
from agentctl.service.service import Service, ServiceOperations
from tests.deployment import Deployment
from tests.loops import wait_until
from tests.service.doors import hosted, running, user


async def test_closing_cancels_what_runs_as_a_recorded_request(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        request = RunRequest("x", session_id="s1", background=True)
        run_id = (await user(service).create_run("agent", "hang", request)).value["run_id"]
        await running(user(service))
    async with hosted(deployment) as service:
        run = (await user(service).get_run(run_id)).value
        assert run["status"] == "CANCELLED"
        assert run["cancel_requested_by"] == "system:shutdown"


async def test_draining_lets_a_run_finish_and_takes_no_new_one(deployment: Deployment) -> None:
    settings = deployment.settings
    patient = replace(settings, server=replace(settings.server, drain_seconds=30))
    async with Service.open(patient, create=True) as service:
        port = user(service)
        request = RunRequest('{"seconds": 0.5}', session_id="s1")
        run = asyncio.create_task(port.create_run("agent", "tool-wait", request))
        await running(port)
        draining = asyncio.create_task(service.drain())
        await wait_until(lambda: service.hosting.engine.draining)
        with pytest.raises(errors.Unavailable, match="shutting down"):
            await port.create_run("agent", "echo", RunRequest("x"))
        ready = (await port.get_readiness()).value
        assert ready["status"] == "unavailable"
        assert ready["checks"]["runs"] == "failed"
        await draining
        assert (await run).value["status"] == "COMPLETED"


async def test_a_caller_that_leaves_before_its_run_has_begun_leaves_nothing_behind(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        for pause in range(12):
            request = RunRequest("x", session_id="s1")
            leaving = asyncio.create_task(port.create_run("agent", "hang", request))
            for _ in range(pause):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
    # The service that closed has waited for all that was on its way.
    async with hosted(deployment) as service:
        runs = await _runs(user(service))
    assert {run["status"] for run in runs} <= {"CANCELLED"}
    assert {run["cancel_requested_by"] for run in runs} <= {"me"}


async def _runs(port: ServiceOperations) -> list[RunRecord]:
    """The runs of the session s1, if it has come to that."""
    try:
        return (await port.get_session_runs("s1")).value
    except errors.NotFound:
        return []
