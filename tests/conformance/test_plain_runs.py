"""A plain run has stopped when it has ended, in a new server process for each agent, 20 times.

The first test of `test_kinds.py` has all agents in one server, whose process has run others.
"""

from __future__ import annotations

import os

import pytest

from tests.conformance.conftest import serve
from tests.conformance.server import FUNCTIONS, PLAIN_NAMES, ConformanceServer, find_unstopped
from tests.conformance.table import KINDS
from tests.kit.deployment import Deployment
from tests.kit.model import ModelEndpoint

PLAIN_AGENTS = (*(f"{kind}-{name}" for kind in KINDS for name in PLAIN_NAMES), *FUNCTIONS)

IS_LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"


@pytest.mark.skipif(not IS_LONG, reason="the long mode: AGENTCTL_TEST_LONG=1")
@pytest.mark.parametrize("agent", PLAIN_AGENTS if IS_LONG else PLAIN_AGENTS[:1])
@pytest.mark.parametrize("number", range(20 if IS_LONG else 1))
async def test_first_runs_name_no_work(
    deployment: Deployment, model_endpoint: ModelEndpoint, agent: str, number: int
) -> None:
    kind = agent.partition("-")[0]
    with serve(deployment, model_endpoint, f"plain-{number}.log", kind) as process:
        async with ConformanceServer(process.url, deployment).connect() as operations:
            assert await find_unstopped(operations, agent) == []
