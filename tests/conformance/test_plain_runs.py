"""A plain run, the first one of a process included, has stopped when it has ended.

Each kind has a new server process 20 times with AGENTCTL_TEST_LONG=1.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from agentctl.operations import Operations
from tests.conformance.conftest import serve
from tests.conformance.server import ConformanceServer, create_conformance_deployment, run_component
from tests.conformance.table import KINDS
from tests.endpoint import ModelEndpoint

IS_LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

MODULE = "plain_agents"

FUNCTIONS = ("call_httpx", "call_openai", "call_anthropic", "use_thread", "leave_generators")

AGENTS = [*(f"{kind}-{name}" for kind in KINDS for name in ("echo", "context")), *FUNCTIONS]


@pytest.mark.parametrize("agents", AGENTS if IS_LONG else ["all"])
@pytest.mark.parametrize("number", range(20 if IS_LONG else 1))
async def test_plain_run_names_no_work(
    tmp_path: Path, model_endpoint: ModelEndpoint, agents: str, number: int
) -> None:
    deployment = create_conformance_deployment(tmp_path, model_endpoint.base_url)
    source = Path(__file__).parent / f"{MODULE}.py"
    (tmp_path / source.name).write_text(source.read_text())
    with deployment.path.open("a") as file:
        for name in FUNCTIONS:
            file.write(f'\n[[agents]]\nid = "{name}"\nobject = "{MODULE}:{name}"\n')
    failed: list[dict[str, Any]] = []
    with serve(deployment, model_endpoint, "plain.log") as process:
        async with ConformanceServer(process.url, deployment).connect() as operations:
            for agent in AGENTS if agents == "all" else [agents]:
                failed += await find_unstopped(operations, agent)
    assert not failed


async def find_unstopped(operations: Operations, agent: str) -> list[dict[str, Any]]:
    """Return the runs, of three and of two at the same time, that named work after their end."""

    async def run() -> dict[str, Any]:
        record = await run_component(operations, "agent", agent, "{}")
        return {
            name: record[name]
            for name in ("agent_id", "status", "holding", "stopped_at", "finished_at")
        }

    runs = [await run(), await run(), await run(), *await asyncio.gather(run(), run())]
    return [
        each
        for each in runs
        if (each["status"], each["holding"]) != ("COMPLETED", [])
        or each["stopped_at"] != each["finished_at"]
    ]
