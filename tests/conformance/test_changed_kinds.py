"""Runs that wait while the server gets a configuration in which their agent has another kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentctl.interface.operations import Operations
from agentctl.interface.requests.approvals import ContinueRequest, Ruling
from agentctl.records.kinds import ComponentKind
from tests.conformance.conftest import serve
from tests.conformance.server import (
    ADK,
    ADK_MODULE,
    MODULE,
    PAYMENT,
    ConformanceServer,
    create_adk_deployment,
    create_conformance_deployment,
    run_component,
)
from tests.kit.deployment import Deployment
from tests.kit.model import ModelEndpoint

KINDS = ("configured", "function", "pydantic-ai", "langgraph", "openai-agents", "agno-agent",
         "generator", "factory")  # fmt: skip

MADE = {"pydantic-ai", "factory"}
"""The factory builds an agent of pydantic-ai: both are of one kind."""

Place = tuple[ComponentKind, str]
Pairs = Mapping[str, tuple[str, str]]
"""The kinds of agents in the first and in the second configuration, by the ids of the agents."""

CONFIGURED = 'model = "payer"\ntools = ["hosted_tools:pay"]\napprove = { pay = "user" }'


def list_places(same: Pairs, changed: Pairs) -> list[Place]:
    """Return the agents, and the teams and workflows of three whose kinds change."""
    return [
        *(("agent", name) for name in (*same, *changed)),
        *(("team", f"team-{name}") for name in [*changed][:3]),
        *(("workflow", f"flow-{name}") for name in [*changed][:3]),
    ]


def format_component(place: Place, kind: str) -> str:
    part, name = place
    table = f'[[{part}s]]\nid = "{name}"'
    member = name.partition("-")[2]
    if part == "team":
        return f'{table}\nmodel = "delegate"\nmembers = ["{member}"]\n'
    if part == "workflow":
        return f'{table}\nsteps = [{{ name = "pay", agent = "{member}" }}]\n'
    module = ADK_MODULE if kind == ADK else MODULE
    hosted = f'object = "{module}:{kind.replace("-", "_")}_pay"'
    return f"{table}\n{CONFIGURED if kind == 'configured' else hosted}\n"


async def start_all(server: ConformanceServer, places: list[Place]) -> dict[Place, Any]:
    """Start a run of each component, which waits for the approval of its payment."""
    message = json.dumps(PAYMENT)
    async with server.connect() as operations:
        runs = {place: await run_component(operations, *place, message) for place in places}
    assert {place: run["status"] for place, run in runs.items()} == dict.fromkeys(places, "PAUSED")
    return runs


async def approve(operations: Operations, place: Place, run: Any) -> tuple[str, str | None]:
    """Approve everything that a run waits for; return its end, or that of the member of a team."""
    while run["status"] == "PAUSED":
        rulings = [
            Ruling("approve", asked["arguments_hash"], approval_id=asked["approval_id"])
            for asked in run["approvals"]
            if asked["status"] == "pending"
        ]
        request = ContinueRequest(tuple(rulings))
        run = (await operations.runs.continue_run(*place, run["run_id"], request)).value
    if place[0] == "team":
        # The leader answers with the failure of its member.
        run = (await operations.runs.get(run["member_runs"][0])).value
    return run["status"], (run["error"] or {}).get("code")


async def approve_all(
    server: ConformanceServer, runs: Mapping[Place, Any]
) -> dict[Place, tuple[str, str | None]]:
    async with server.connect() as operations:
        return {place: await approve(operations, place, run) for place, run in runs.items()}


@pytest.mark.parametrize("kinds", [KINDS, ("configured", ADK)], ids=["libraries", ADK])
def test_changed_kind_makes_no_approved_call(
    tmp_path: Path, model_endpoint: ModelEndpoint, kinds: tuple[str, ...]
) -> None:
    create = create_adk_deployment if ADK in kinds else create_conformance_deployment
    deployment: Deployment = create(tmp_path, model_endpoint.base_url)
    base = deployment.path.read_text()
    ledger = tmp_path / "ledger"
    base += '\n[[models]]\nid = "payer"\nprovider = "openai"\nmodel = "tool:pay"\n'
    base += f'base_url = "{model_endpoint.base_url}"\n'
    pairs = {
        f"{before}-{kinds[(index + step) % len(kinds)]}": (
            before,
            kinds[(index + step) % len(kinds)],
        )
        for step in (0, 1, 5)
        for index, before in enumerate(kinds)
    }
    same = {name: pair for name, pair in pairs.items() if {*pair} <= MADE or len({*pair}) == 1}
    changed = {name: pair for name, pair in pairs.items() if name not in same}
    places = list_places(same, changed)

    def configure(place: int) -> None:
        tables = [format_component(each, pairs.get(each[1], ("", ""))[place]) for each in places]
        deployment.path.write_text("\n".join([base, *tables]))

    configure(0)
    with serve(deployment, model_endpoint, "first.log", kinds[1]) as process:
        runs = asyncio.run(start_all(ConformanceServer(process.url, deployment), places))
    assert not ledger.exists()
    configure(1)
    with serve(deployment, model_endpoint, "second.log", kinds[1]) as process:
        ends = asyncio.run(approve_all(ConformanceServer(process.url, deployment), runs))

    expected: dict[Place, Any] = dict.fromkeys(places, ("ERROR", "VERSION_CHANGED"))
    expected |= {("agent", name): ("COMPLETED", None) for name in same}
    assert ends == expected
    assert ledger.read_text().splitlines() == ["10 to bob"] * len(same)
    log = (tmp_path / "second.log").read_text()
    assert "Traceback" not in log, log
