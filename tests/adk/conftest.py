"""Fixtures: a server with agents of Google ADK, in their environment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.deployment import create_deployment
from tests.kit.environments import find_adk
from tests.kit.model import ModelEndpoint
from tests.kit.scripted_models import ScriptedModels, models
from tests.pauses.waiting import WaitingDeployment, WaitingServer

__all__ = ["models"]

KEYS = {"repeater": "repeat_calls = 2"}
"""Further keys of agents, by their ids."""

SOURCE = Path(__file__).with_name("adk_agents.py")


@pytest.fixture(scope="session")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, models: ScriptedModels, vendor_endpoint: ModelEndpoint
) -> WaitingDeployment:
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
    inner = create_deployment(folder, models.url, extra="\n\n".join(tables))
    gemini = {"GOOGLE_GEMINI_BASE_URL": vendor_endpoint.root_url, "GOOGLE_API_KEY": "x"}
    return WaitingDeployment(inner, models.url, python, variables | gemini)


@pytest.fixture(scope="session")
def server(deployment: WaitingDeployment) -> Iterator[WaitingServer]:
    """A server for all tests that kill none."""
    with deployment.serve() as running:
        yield running
