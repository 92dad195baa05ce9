"""Fixtures: a deployment with agents that wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.model import ModelEndpoint
from tests.pauses.graphs import create_graph_deployment
from tests.pauses.waiting import WaitingDeployment, WaitingServer, create_waiting_deployment


@pytest.fixture(scope="session")
def shared(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[WaitingServer]:
    """A server for all tests that kill none."""
    folder = tmp_path_factory.mktemp("waiting")
    with create_waiting_deployment(folder, model_endpoint.base_url).serve() as server:
        yield server


@pytest.fixture
def waiting(tmp_path: Path, model_endpoint: ModelEndpoint) -> WaitingDeployment:
    return create_waiting_deployment(tmp_path, model_endpoint.base_url)


@pytest.fixture(scope="module")
def shared_graphs(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
) -> Iterator[WaitingServer]:
    """A server with the `AGENTS` of a module of tests, which import one library only."""
    folder: Path = tmp_path_factory.mktemp("graphs")
    deployment = create_graph_deployment(folder, model_endpoint.base_url, *request.module.AGENTS)
    with deployment.serve() as server:
        yield server


@pytest.fixture
def graphs(
    request: pytest.FixtureRequest, tmp_path: Path, model_endpoint: ModelEndpoint
) -> WaitingDeployment:
    """A deployment with the `AGENTS` of a module of tests."""
    return create_graph_deployment(tmp_path, model_endpoint.base_url, *request.module.AGENTS)
