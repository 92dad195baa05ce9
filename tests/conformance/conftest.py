"""A server with every kind of agent, shared by all conformance tests."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.server import (
    PAYMENT,
    ConformanceServer,
    create_conformance_deployment,
    run_component,
)
from tests.conformance.table import KINDS
from tests.deployment import Deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.process import ServerProcess, serve_config

__all__ = ["model_endpoint", "pytest_pyfunc_call"]


@pytest.fixture(scope="session")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Deployment:
    folder: Path = tmp_path_factory.mktemp("conformance")
    return create_conformance_deployment(folder, model_endpoint.base_url)


@pytest.fixture(scope="session")
def server(deployment: Deployment, model_endpoint: ModelEndpoint) -> Iterator[ConformanceServer]:
    with serve(deployment, model_endpoint, "server.log") as process:
        yield ConformanceServer(process.url, deployment)


@pytest.fixture(scope="session")
def paused_runs(
    deployment: Deployment, model_endpoint: ModelEndpoint, server: ConformanceServer
) -> dict[str, dict[str, Any]]:
    """A run of each kind that waits, by kind; the server that started them was killed."""

    async def start_all(other: ConformanceServer) -> dict[str, dict[str, Any]]:
        async with other.connect() as operations:
            return {
                kind: await run_component(operations, "agent", f"{kind}-pay", json.dumps(PAYMENT))
                for kind in KINDS
            }

    with serve(deployment, model_endpoint, "other.log") as process:
        runs = asyncio.run(start_all(ConformanceServer(process.url, deployment)))
        process.stop(signal.SIGKILL)
    return runs


def serve(
    deployment: Deployment, endpoint: ModelEndpoint, log: str
) -> AbstractContextManager[ServerProcess]:
    """Run a server process of the deployment."""
    return serve_config(deployment.path, log=log, variables={"MODEL_URL": endpoint.base_url})
