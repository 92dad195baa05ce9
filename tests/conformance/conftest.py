"""A server with every kind of agent, shared by all conformance tests.

The agents of Google ADK need another environment, and so another server.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.server import (
    ADK,
    PAYMENT,
    ConformanceServer,
    create_adk_deployment,
    create_conformance_deployment,
    run_component,
)
from tests.conformance.table import KINDS
from tests.kit.deployment import Deployment
from tests.kit.environments import find_adk
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, serve_config


@dataclass(frozen=True)
class Site:
    """A deployment with the agents of some kinds, and its server."""

    kinds: tuple[str, ...]
    deployment: Deployment
    endpoint: ModelEndpoint
    server: ConformanceServer

    @cached_property
    def paused_runs(self) -> dict[str, dict[str, Any]]:
        """A run of each kind that waits, by kind; the server that started them was killed."""

        async def start_all(other: ConformanceServer) -> dict[str, dict[str, Any]]:
            message = json.dumps(PAYMENT)
            async with other.connect() as operations:
                return {
                    kind: await run_component(operations, "agent", f"{kind}-pay", message)
                    for kind in self.kinds
                }

        with serve(self.deployment, self.endpoint, "other.log", self.kinds[0]) as process:
            started = ConformanceServer(process.url, self.deployment)
            runs = asyncio.run(start_all(started))
            process.stop(signal.SIGKILL)
        return runs


@pytest.fixture(scope="session")
def open_site(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Callable[[str], Site]]:
    """Return the site of Google ADK, or that of all other kinds; each is started once."""
    with ExitStack() as stack:

        @cache
        def start(kind: str) -> Site:
            folder: Path = tmp_path_factory.mktemp("conformance")
            create = create_adk_deployment if kind == ADK else create_conformance_deployment
            deployment = create(folder, model_endpoint.base_url)
            kinds = tuple(each for each in KINDS if (each == ADK) is (kind == ADK))
            served = serve(deployment, model_endpoint, "server.log", kind)
            server = ConformanceServer(stack.enter_context(served).url, deployment)
            return Site(kinds, deployment, model_endpoint, server)

        yield start


@pytest.fixture
def site(request: pytest.FixtureRequest, open_site: Callable[[str], Site]) -> Site:
    """The site of the kind of a test, or of its agent."""
    params = request.node.callspec.params
    kind = params.get("kind") or params["agent"].partition("-")[0]
    return open_site(ADK if kind == ADK else "")


@pytest.fixture
def deployment(site: Site) -> Deployment:
    return site.deployment


@pytest.fixture
def server(site: Site) -> ConformanceServer:
    return site.server


@pytest.fixture
def paused_runs(site: Site) -> dict[str, dict[str, Any]]:
    return site.paused_runs


def serve(
    deployment: Deployment, endpoint: ModelEndpoint, log: str, kind: str = ""
) -> AbstractContextManager[ServerProcess]:
    """Run a server process of the deployment, in the environment of its kinds."""
    python, variables = find_adk() if kind == ADK else (sys.executable, {})
    variables = {**variables, "MODEL_URL": endpoint.base_url}
    return serve_config(deployment.path, log=log, variables=variables, python=python)
