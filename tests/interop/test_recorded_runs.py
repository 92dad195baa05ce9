"""The recorded runs have the events of runs of today."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentctl.interface.requests import CancelRequest, ResumeRequest, RunRequest, StreamEvent
from agentctl.interface.requests.approvals import ContinueRequest, build_ruling
from agentctl.service.service import ServiceOperations
from tests.interop.recorded_runs import (
    CODE,
    CONFIG,
    FOLDER,
    RECORDINGS,
    Recording,
    format_events,
    join_texts,
    read_events,
)
from tests.kit.deployment import Deploy
from tests.kit.service import open_service, user


async def test_recorded_events_are_those_of_runs(deploy: Deploy, subtests: pytest.Subtests) -> None:
    config = CONFIG.format(url=deploy.url)
    deployment = deploy(config, files={"telling_agents.py": CODE})
    async with open_service(deployment) as service:
        operations = user(service)
        for recording in RECORDINGS:
            with subtests.test(recording.name):
                events = await make_run(operations, recording)
                made = format_events(join_texts(events))
                file = FOLDER / f"{recording.name}.jsonl"
                if os.environ.get("AGENTCTL_TEST_WRITE") and made != read_joined(file):
                    file.write_text(format_events(events), encoding="utf-8")
                assert made == read_joined(file)


def read_joined(file: Path) -> str:
    """Return a recording whose adjacent parts of a text are one; empty without the file."""
    if not file.exists():
        return ""
    return format_events(join_texts(read_events(file.stem)))


async def make_run(operations: ServiceOperations, recording: Recording) -> list[StreamEvent]:
    """Make the run of a recording, and return all of its events."""
    place = (recording.kind, recording.component)
    tools = [*recording.tools] or None
    request = RunRequest(recording.message, client_tools=tools)
    run: Any = {}
    async for event in operations.runs.stream(*place, request):
        run = run or json.loads(event.data)
        if recording.is_cancelled and event.name == "RunContent":
            cancel = CancelRequest(run["session_id"], reason="enough")
            await operations.runs.cancel(*place, run["run_id"], cancel)

    record: Any = (await operations.runs.get(run["run_id"])).value
    if recording.rulings:
        asked = [each for each in record["approvals"] if each["status"] == "pending"]
        rulings = [
            build_ruling(approval, ruled.verb, ruled.value, ruled.note)
            for approval, ruled in zip(asked, recording.rulings, strict=True)
        ]
        decided = ContinueRequest(tuple(rulings))
        await operations.runs.continue_run(*place, run["run_id"], decided)

    whole = ResumeRequest(run["session_id"])
    return [event async for event in operations.runs.resume(*place, run["run_id"], whole)]
