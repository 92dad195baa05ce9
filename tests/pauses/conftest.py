"""Fixtures: a deployment with agents that wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.endpoint import ModelEndpoint, model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.pauses.graphs import create_graph_deployment
from tests.pauses.waiting import WaitingDeployment, WaitingServer, create_waiting_deployment

__all__ = ["model_endpoint", "pytest_pyfunc_call"]


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


@pytest.fixture(scope="session")
def shared_graphs(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[WaitingServer]:
    """A server with the agents of LangGraph and agno, for all tests that kill none."""
    folder = tmp_path_factory.mktemp("graphs")
    with create_graph_deployment(folder, model_endpoint.base_url).serve() as server:
        yield server


@pytest.fixture
def graphs(tmp_path: Path, model_endpoint: ModelEndpoint) -> WaitingDeployment:
    return create_graph_deployment(tmp_path, model_endpoint.base_url)
