"""What stays in memory of runs that have ended: nothing, though connections stay open.

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
from agentctl.runs.live import LiveRun
from tests.deployment import Deployment
from tests.loops import wait_until
from tests.service.doors import collect, hosted, started, user

pytestmark = pytest.mark.slow

SECONDS = 30.0


def known() -> int:
    """How many live runs are in memory."""
    gc.collect()
    return sum(isinstance(found, LiveRun) for found in gc.get_objects())


def served(work: Coroutine[None, None, None]) -> None:
    """Run it on the server's kind of loop."""
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
def test_a_run_that_has_ended_is_forgotten(
    deployment: Deployment, kind: ComponentKind, component_id: str, message: str
) -> None:
    async def ended() -> None:
        async with hosted(deployment) as service:
            port, before = user(service), known()
            await asyncio.gather(
                *(collect(port, kind, component_id, message=message) for _ in range(5))
            )
            await wait_until(lambda: known() <= before, SECONDS)

    served(ended())


def test_a_run_that_was_stopped_is_forgotten(deployment: Deployment) -> None:
    async def stopped() -> None:
        async with hosted(deployment) as service:
            before = known()
            async with started(user(service), "agent", "half", message="x"):
                assert known() == before + 1
            await wait_until(lambda: known() <= before, SECONDS)

    served(stopped())
