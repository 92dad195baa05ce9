"""Connections to a model endpoint that runs of two users share: each gets its own answer only.

AGENTCTL_TEST_LONG=1 makes two hundred times as many runs.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from agentctl.interface.operations import Operations
from agentctl.interface.requests import CancelRequest, RunRequest
from agentctl.remote.client import RemoteOperations
from tests.kit.deployment import Deploy
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

SCOPES = ("agents:read", "agents:run", "sessions:read")
ROUNDS = 2_000 if os.environ.get("AGENTCTL_TEST_LONG") == "1" else 10

AGENT = """
[[models]]
id = "whole"
provider = "openai"
model = "whole"
base_url = "{url}"
retries = 0

[[agents]]
id = "whole"
model = "whole"
"""


@pytest.fixture(scope="module")
def served(deploy: Deploy) -> Iterator[ThreadedServer]:
    with serve_in_thread(deploy(AGENT.format(url=deploy.url))) as server:
        yield server


def open_operations(served: ThreadedServer, user: str) -> RemoteOperations:
    return RemoteOperations(served.url, served.deployment.token(user, *SCOPES))


async def run(operations: Operations, text: str) -> dict[str, Any]:
    request = RunRequest(text)
    return dict((await operations.runs.create("agent", "whole", request)).value)


async def test_refused_response_reaches_no_other_user(served: ThreadedServer) -> None:
    async with open_operations(served, "ann") as ann, open_operations(served, "bob") as bob:
        for number in range(3):
            assert (await run(ann, f"secret of ann {number} compressed"))["status"] == "ERROR"
            assert (await run(bob, f"bob {number}"))["content"] == f"bob {number}"


async def test_cancelled_run_reaches_no_other_user(served: ThreadedServer) -> None:
    chance = random.Random(36)
    foreign: list[dict[str, Any]] = []

    async def cancel_runs(ann: Operations) -> None:
        for number in range(ROUNDS):
            seconds = chance.uniform(0, 0.1)
            request = RunRequest(f"secret of ann {number} late {seconds:.3f}", background=True)
            started = (await ann.runs.create("agent", "whole", request)).value
            await asyncio.sleep(seconds + chance.uniform(-0.02, 0.02))
            cancel = CancelRequest(started["session_id"])
            await ann.runs.cancel("agent", "whole", started["run_id"], cancel)

    async def follow_runs(bob: Operations, runner: int) -> None:
        while not all(each.done() for each in cancelling):
            text = f"bob {runner} {chance.random()}"
            ended = await run(bob, text)
            if ended["content"] != text:
                foreign.append(ended)

    async with open_operations(served, "ann") as ann, open_operations(served, "bob") as bob:
        cancelling = [asyncio.create_task(cancel_runs(ann)) for _ in range(4)]
        await asyncio.gather(*(follow_runs(bob, number) for number in range(2)), *cancelling)
    assert foreign == []
