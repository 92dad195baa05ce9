"""A server with every kind of agent, shared by all conformance tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.server import ConformanceServer, create_conformance_deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.process import start_server

__all__ = ["model_endpoint", "pytest_pyfunc_call"]


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[ConformanceServer]:
    folder: Path = tmp_path_factory.mktemp("conformance")
    deployment = create_conformance_deployment(folder, model_endpoint.base_url)
    options = ("--config", str(deployment.path), "--port", "0")
    environment = {**os.environ, "MODEL_URL": model_endpoint.base_url}
    with start_server(*options, log=folder / "server.log", environment=environment) as process:
        yield ConformanceServer(process.url, deployment)
