"""Ended runs leave no memory, even while connections stay open.

On the event loop that the server has. That of the standard library keeps the context of a timer
that was cancelled until its time would have come.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine

import pytest
import uvloop

from agentctl.records.kinds import ComponentKind
from agentctl.runs.life.live import LiveRun
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import collect_run_events, open_service, streamed_run, user


@pytest.fixture
def model_endpoint(process_endpoint: ModelEndpoint) -> ModelEndpoint:
    """In its own process: the one of this folder is in the event loop of coroutines as tests."""
    return process_endpoint


@pytest.fixture(autouse=True)
def _few_objects() -> None:
    """Keep the garbage collector from walking the objects of earlier tests at each count."""
    gc.collect()
    gc.freeze()


def count_live_runs() -> int:
    """Return the number of live runs in memory."""
    gc.collect()
    return sum(isinstance(found, LiveRun) for found in gc.get_objects())


def run_on_uvloop(work: Coroutine[None, None, None]) -> None:
    """Execute the coroutine on the event loop of the server."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


@pytest.mark.parametrize(
    ("kind", "component_id", "message"),
    [
        ("agent", "echo", "hello"),
        ("agent", "tool-add", '{"a": 1, "b": 2}'),
        ("team", "crew", "ask echo"),
    ],
)
def test_engine_forgets_a_finished_run(
    deployment: Deployment, kind: ComponentKind, component_id: str, message: str
) -> None:
    async def ended() -> None:
        async with open_service(deployment) as service:
            operations = user(service)
            before = count_live_runs()
            await asyncio.gather(
                *(
                    collect_run_events(operations, kind, component_id, message=message)
                    for _ in range(5)
                )
            )
            await wait_until(lambda: count_live_runs() <= before)

    run_on_uvloop(ended())


def test_engine_forgets_a_cancelled_run(deployment: Deployment) -> None:
    async def stopped() -> None:
        async with open_service(deployment) as service:
            before = count_live_runs()
            async with streamed_run(user(service), "agent", "half", message="x"):
                assert count_live_runs() == before + 1
            await wait_until(lambda: count_live_runs() <= before)

    run_on_uvloop(stopped())
