"""The servers of the conformance tests: one for each engine, shared by all tests.

The agents of Google ADK need another environment, and so a process; other servers are threads.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
from tests.kit.deployment import Deployment
from tests.kit.engines import Engine
from tests.kit.environments import find_adk
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, serve_config
from tests.kit.site import Server, kill
from tests.kit.threaded_server import forget_modules, serve_in_thread


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

        with open_server(self.kinds, self.deployment, self.endpoint, "other.log") as other:
            runs = asyncio.run(start_all(ConformanceServer(other.url, self.deployment)))
            kill(other)
        return runs


OpenSite = Callable[[tuple[str, ...], str], Site]


@pytest.fixture(scope="session")
def open_site(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint, postgres_url: str
) -> Iterator[OpenSite]:
    """Return the site of some kinds on an engine; each is started once."""
    with ExitStack() as stack:

        @cache
        def start(kinds: tuple[str, ...], engine: str) -> Site:
            folder: Path = tmp_path_factory.mktemp("conformance")
            url = postgres_url if engine == "postgres" else None
            databases = stack.enter_context(Engine(url).databases())
            model_url = model_endpoint.base_url
            if kinds == (ADK,):
                deployment = create_adk_deployment(folder, model_url, databases)
            else:
                deployment = create_conformance_deployment(folder, model_url, databases, kinds)
            opened = open_server(kinds, deployment, model_endpoint, "server.log")
            server = ConformanceServer(stack.enter_context(opened).url, deployment)
            return Site(kinds, engine, deployment, model_endpoint, server)

        yield start


@pytest.fixture
def site(request: pytest.FixtureRequest, open_site: OpenSite) -> Site:
    """The site of the cell of a test, or of its agent.

    It has the other kinds that the module tests, too. A server opens all its agents when it starts.
    """
    params = request.node.callspec.params
    cell: Cell | None = params.get("cell")
    engine = "sqlite" if cell is None else cell.engine
    kind = params["agent"].partition("-")[0] if cell is None else cell.kind
    if kind == ADK:
        return open_site((ADK,), engine)

    tested_kinds = getattr(request.module, "TESTED_KINDS", KINDS)
    return open_site(tuple(each for each in tested_kinds if each != ADK), engine)


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


@contextmanager
def open_server(
    kinds: tuple[str, ...], deployment: Deployment, endpoint: ModelEndpoint, log: str
) -> Iterator[Server]:
    """Run a server of the deployment, in a thread unless its kinds need another environment."""
    if kinds == (ADK,):
        with serve(deployment, endpoint, log, ADK) as process:
            yield process
        return

    # A checkpointer in memory is not in the other server.
    forget_modules(deployment.folder)
    variables = {"MODEL_URL": endpoint.base_url}
    with serve_in_thread(deployment, code_leaves_connections=True, variables=variables) as server:
        yield server


def serve(
    deployment: Deployment, endpoint: ModelEndpoint, log: str, kind: str = ""
) -> AbstractContextManager[ServerProcess]:
    """Run a server process of the deployment, in the environment of its kinds."""
    python, variables = find_adk() if kind == ADK else (sys.executable, {})
    variables = {**variables, "MODEL_URL": endpoint.base_url}
    return serve_config(deployment.path, log=log, variables=variables, python=python)
