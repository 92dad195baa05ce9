"""Fixtures: a server with agents, teams and workflows of agno."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.model import ModelEndpoint
from tests.pauses.graphs import create_library_deployment
from tests.pauses.waiting import WaitingServer

SOURCE = Path(__file__).with_name("agno_agents.py")


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[WaitingServer]:
    folder = tmp_path_factory.mktemp("agno")
    deployment = create_library_deployment(folder, model_endpoint.base_url, SOURCE)
    with deployment.serve_in_thread() as server:
        yield server
