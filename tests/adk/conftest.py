"""Fixtures: one server with agents of Google ADK, in their environment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.command import run_command
from tests.kit.deployment import create_deployment
from tests.kit.environments import find_adk
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, base_environment
from tests.kit.scripted_models import ScriptedModels, models
from tests.pauses.waiting import WaitingDeployment, WaitingServer
from tests.stops.server import ADK_MODULE, StopServer, list_tables

__all__ = ["models"]

KEYS = {"repeater": "repeat_calls = 2"}
"""Further keys of agents, by their ids."""

SOURCE = Path(__file__).with_name("adk_agents.py")

NEW_AGENT = (
    '[[agents]]\nid = "assistant"\nname = "Assistant"\n'
    'description = "An agent of Google ADK"\nobject = "my_agent:assistant"'
)
"""The agent of a new project."""


@pytest.fixture(scope="session")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, models: ScriptedModels, vendor_endpoint: ModelEndpoint
) -> WaitingDeployment:
    """A deployment with the agents of this folder, those of tests/stops, and that of a project."""
    python, variables = find_adk()
    folder: Path = tmp_path_factory.mktemp("adk")
    text = SOURCE.read_text()
    (folder / SOURCE.name).write_text(text)
    names = re.findall(
        r"^(\w+) = (?:Agent|App|SequentialAgent|Workflow|gemini)\(", text, re.MULTILINE
    )
    tables = [
        f'[[agents]]\nid = "{name}"\nobject = "adk_agents:{name}"\n{KEYS.get(name, "")}'
        for name in names
    ]
    tables += list_tables(folder, [ADK_MODULE])

    project: Path = tmp_path_factory.mktemp("project")
    made = run_command("init", "--agent", "adk", environment=base_environment(), folder=project)
    assert made.code == 0, made.stderr
    assert NEW_AGENT in (project / "agentctl.toml").read_text()
    (folder / "my_agent.py").write_text((project / "my_agent.py").read_text())

    inner = create_deployment(folder, models.url, extra="\n\n".join([*tables, NEW_AGENT]))
    gemini = {"GOOGLE_GEMINI_BASE_URL": vendor_endpoint.root_url, "GOOGLE_API_KEY": "x"}
    ledger = {"LEDGER": str(folder / "ledger")}
    return WaitingDeployment(inner, models.url, python, variables | gemini | ledger)


@pytest.fixture(scope="session")
def server(deployment: WaitingDeployment) -> Iterator[WaitingServer]:
    """A server for all tests that kill none."""
    with deployment.serve() as running:
        yield running


@pytest.fixture(scope="module")
def stop_server(server: WaitingServer) -> Iterator[StopServer]:
    """The same server, for tests of stops: it logs no exception meanwhile."""
    assert isinstance(server.host, ServerProcess)
    before = len(server.host.log_text)
    folder = server.deployment.inner.folder
    yield StopServer(server.host, server.deployment.inner, folder / "ledger")
    assert "Traceback" not in server.host.log_text[before:]
