"""Runs that are cancelled at any moment of their start keep their message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentctl.interface.requests import RunFilter, RunRequest, SessionRunsQuery
from agentctl.records.kinds import ComponentKind
from agentctl.service.service import ServiceOperations
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.kit.service import collect_run_events, open_service, user

MOMENTS = 40


async def leave_after(
    operations: ServiceOperations, kind: ComponentKind, component_id: str, steps: int
) -> str:
    """Start a run, leave after `steps` steps of the event loop, and return its message."""
    message = f"question {steps}"
    stream = bool(steps % 2)
    given: dict[str, Any] = {"message": message, "session_id": "s1"}
    asking: asyncio.Task[Any] = asyncio.create_task(
        collect_run_events(operations, kind, component_id, **given)
        if stream
        else operations.runs.create(kind, component_id, RunRequest(**given))
    )
    for _ in range(steps):
        await asyncio.sleep(0.0002)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    return message


@pytest.mark.parametrize(("kind", "component_id"), [("agent", "hang"), ("team", "jam")])
async def test_run_cancelled_at_its_start_keeps_its_message(
    deployment: Deployment, kind: ComponentKind, component_id: str
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        asked = [
            await leave_after(operations, kind, component_id, steps) for steps in range(MOMENTS)
        ]
        await wait_until(lambda: not service.hosting.engine.live_runs())
        roots = list[str]()
        last = None
        while runs := (
            await operations.sessions.list_runs("s1", SessionRunsQuery(after=last))
        ).value:
            roots += [run["input"] for run in runs if run["parent_run_id"] is None]
            last = runs[-1]["run_id"]
        assert set(roots) <= set(asked)
        session: dict[str, Any] = (await operations.sessions.get("s1")).value  # type: ignore[assignment]
        said = [entry["content"] for entry in session["chat_history"] if entry["role"] == "user"]
        assert said == roots
        live = (await operations.runs.list(RunFilter(live=True))).value
        assert live["data"] == []
