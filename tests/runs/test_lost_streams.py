"""The end of a run whose worker is gone reaches who had more of it than was stored."""

from __future__ import annotations

import pytest

from agentctl.operations import ResumeRequest
from agentctl.runs.recovery import LOST_SEQ_STEP, recover_runs
from tests.deployment import Deployment
from tests.runs.rig import a_live_run, said
from tests.service.doors import hosted, user


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("after", [-1, 0, 1, 2, 57])
async def test_the_end_comes_behind_whatever_was_delivered(
    deployment: Deployment, kept: int, after: int
) -> None:
    async with hosted(deployment) as service:
        database = service.hosting.databases["main"]
        run = await a_live_run(database, "dead", component_id="echo")
        stored = await said(database, run, *["word "] * kept) if kept else 0
        assert await recover_runs(database, "dead") == ["r1"]
        request = ResumeRequest("s1", after)
        port = user(service, run.user_id)
        found = [event async for event in port.resume_run("agent", "echo", "r1", request)]
        numbers = [*range(after + 1, stored), stored - 1 + LOST_SEQ_STEP]
        assert [event.seq for event in found] == numbers
        assert found[-1].name == "RunError"
