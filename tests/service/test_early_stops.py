"""Runs that are stopped at any moment of their beginning keep what they were asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentctl.operations import RunFilter, RunRequest
from agentctl.records.kinds import ComponentKind
from agentctl.service.service import ServiceOperations
from tests.deployment import Deployment
from tests.loops import wait_until
from tests.service.doors import collect, hosted, user

MOMENTS = 40


async def leave_after(
    port: ServiceOperations, kind: ComponentKind, component_id: str, steps: int
) -> str:
    """Start a run, and go away after so many steps of the event loop; its message."""
    message, stream = f"question {steps}", bool(steps % 2)
    given: dict[str, Any] = {"message": message, "session_id": "s1"}
    asking: asyncio.Task[Any] = asyncio.create_task(
        collect(port, kind, component_id, **given)
        if stream
        else port.create_run(kind, component_id, RunRequest(**given))
    )
    for _ in range(steps):
        await asyncio.sleep(0.0002)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    return message


@pytest.mark.parametrize(("kind", "component_id"), [("agent", "hang"), ("team", "jam")])
async def test_a_run_that_is_stopped_as_it_begins_keeps_its_question(
    deployment: Deployment, kind: ComponentKind, component_id: str
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        asked = [await leave_after(port, kind, component_id, steps) for steps in range(MOMENTS)]
        await wait_until(lambda: not service.hosting.engine.live_runs())
        runs = (await port.get_session_runs("s1")).value
        roots = [run["input"] for run in runs if run["parent_run_id"] is None]
        assert set(roots) <= set(asked)
        session: dict[str, Any] = (await port.get_session_by_id("s1")).value  # type: ignore[assignment]
        said = [entry["content"] for entry in session["chat_history"] if entry["role"] == "user"]
        assert said == roots
        live = (await port.get_runs(RunFilter(live=True))).value
        assert live["data"] == []
