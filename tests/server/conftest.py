"""One server for each test process, for tests that only read. Other tests start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deployment import Deployment, create_deployment, deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.server.seeds import seed
from tests.server.threaded_server import ThreadedServer, serve_in_thread

__all__ = ["deployment", "model_endpoint", "pytest_pyfunc_call"]


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[ThreadedServer]:
    """A running server with sessions and runs."""
    deployment = create_deployment(tmp_path_factory.mktemp("served"), model_endpoint.base_url)
    with serve_in_thread(deployment) as host:
        seed(host)
        yield host


@pytest.fixture(scope="session")
def settled(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Deployment:
    """A configuration that several tests use, one after another."""
    return create_deployment(tmp_path_factory.mktemp("settled"), model_endpoint.base_url)
