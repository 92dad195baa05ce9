"""The last event of an orphaned run, for followers with events that were never stored."""

from __future__ import annotations

import pytest

from agentctl.interface.requests import ResumeRequest
from agentctl.runs.log.event_rows import LOST_SEQ_STEP
from agentctl.runs.log.fold import read_stored_items
from agentctl.runs.workers.recovery import recover_runs
from tests.kit.deployment import Deployment
from tests.kit.service import open_service, user
from tests.runs.shared_databases import create_live_run, store_events


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("after", [-1, 0, 1, 2, 57])
async def test_end_of_an_orphaned_run_follows_unstored_events(
    deployment: Deployment, kept: int, after: int
) -> None:
    async with open_service(deployment) as service:
        database = service.hosting.databases["main"]
        run = await create_live_run(database, "dead", component_id="echo")
        stored = await store_events(database, run, *["word "] * kept) if kept else 0
        assert await recover_runs(database, "dead") == ["r1"]
        request = ResumeRequest("s1", after)
        port = user(service, run.user_id)
        found = [event async for event in port.runs.resume("agent", "echo", "r1", request)]
        numbers = [*range(after + 1, stored), stored - 1 + LOST_SEQ_STEP]
        assert [event.seq for event in found] == numbers
        assert found[-1].name == "RunError"


async def test_items_of_a_run_of_another_process_have_its_text(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        database = service.hosting.databases["main"]
        run = await create_live_run(database, "other", component_id="echo")
        await store_events(database, run, "one ", "two")
        (item,) = (await database.read(read_stored_items("r1"))).runs["r1"].items
        assert item == {"type": "text", "text": "one two"}
