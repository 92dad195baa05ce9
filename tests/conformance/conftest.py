"""The servers of the conformance tests: one for each engine, shared by all tests.

The agents of Google ADK need another environment, and so other servers.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache, cached_property, wraps
from pathlib import Path

import pytest

from tests.conformance.cells import Cell, choose_engine
from tests.conformance.interfaces import Interface, Record, build_interface
from tests.conformance.server import (
    ADK,
    PAYMENT,
    ConformanceServer,
    create_adk_deployment,
    create_conformance_deployment,
    run_component,
)
from tests.conformance.table import KINDS
from tests.contract.engines import Engine
from tests.kit.deployment import Deployment
from tests.kit.environments import find_adk
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, serve_config


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the test of a column its cells, for the kinds that its module tests."""
    if "cell" not in metafunc.fixturenames:
        return
    column = metafunc.function.__name__.removeprefix("test_").replace("_", "-")
    cells = [Cell(kind, column) for kind in metafunc.module.TESTED_KINDS]
    metafunc.parametrize("cell", cells, ids=str)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Open the interface of a test in its event loop, and close it there."""
    interface: Interface | None = pyfuncitem.funcargs.get("interface")
    if interface is None:
        return
    test = pyfuncitem.obj

    @wraps(test)
    async def open_and_test(**arguments: object) -> None:
        async with interface:
            await test(**arguments)

    pyfuncitem.obj = open_and_test


@dataclass(frozen=True)
class Site:
    """A deployment with the agents of some kinds on an engine, and its server."""

    kinds: tuple[str, ...]
    engine: str
    deployment: Deployment
    endpoint: ModelEndpoint
    server: ConformanceServer

    @cached_property
    def paused_runs(self) -> dict[str, Record]:
        """A run that waits of each kind whose cell has this engine; its server was killed."""

        async def start_all(other: ConformanceServer) -> dict[str, Record]:
            message = json.dumps(PAYMENT)
            runs = {}
            for kind in self.kinds:
                if choose_engine(kind, "elsewhere") != self.engine:
                    continue
                async with other.connect(f"{kind}-user") as operations:
                    runs[kind] = await run_component(operations, "agent", f"{kind}-pay", message)
            return runs

        with serve(self.deployment, self.endpoint, "other.log", self.kinds[0]) as process:
            started = ConformanceServer(process.url, self.deployment)
            runs = asyncio.run(start_all(started))
            process.stop(signal.SIGKILL)
        return runs


@pytest.fixture(scope="session")
def open_site(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint, postgres_url: str
) -> Iterator[Callable[[str, str], Site]]:
    """Return the site of a kind on an engine; each is started once."""
    with ExitStack() as stack:

        @cache
        def start(is_adk: bool, engine: str) -> Site:
            folder: Path = tmp_path_factory.mktemp("conformance")
            create = create_adk_deployment if is_adk else create_conformance_deployment
            url = postgres_url if engine == "postgres" else None
            databases = stack.enter_context(Engine(url).databases())
            deployment = create(folder, model_endpoint.base_url, databases)
            kinds = tuple(kind for kind in KINDS if (kind == ADK) is is_adk)
            served = serve(deployment, model_endpoint, "server.log", kinds[0])
            server = ConformanceServer(stack.enter_context(served).url, deployment)
            return Site(kinds, engine, deployment, model_endpoint, server)

        yield lambda kind, engine: start(kind == ADK, engine)


@pytest.fixture
def site(request: pytest.FixtureRequest, open_site: Callable[[str, str], Site]) -> Site:
    """The site of the cell of a test, or of its agent."""
    params = request.node.callspec.params
    cell: Cell | None = params.get("cell")
    if cell is None:
        return open_site(params["agent"].partition("-")[0], "sqlite")
    return open_site(cell.kind, cell.engine)


@pytest.fixture
def interface(site: Site, cell: Cell, tmp_path: Path) -> Interface:
    """The interface of the cell of a test, which is open while the test runs."""
    folder = tmp_path / "interface"
    folder.mkdir()
    return build_interface(cell.interface, site.server, f"{cell.kind}-user", folder)


@pytest.fixture
def deployment(site: Site) -> Deployment:
    return site.deployment


@pytest.fixture
def server(site: Site) -> ConformanceServer:
    return site.server


@pytest.fixture
def paused_runs(site: Site) -> dict[str, Record]:
    return site.paused_runs


def serve(
    deployment: Deployment, endpoint: ModelEndpoint, log: str, kind: str = ""
) -> AbstractContextManager[ServerProcess]:
    """Run a server process of the deployment, in the environment of its kinds."""
    python, variables = find_adk() if kind == ADK else (sys.executable, {})
    variables = {**variables, "MODEL_URL": endpoint.base_url}
    return serve_config(deployment.path, log=log, variables=variables, python=python)
