"""The local backend and a server process for the remote backend, on both database engines.

A server starts once for each engine; the rows of a test are removed.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.approvals import paying_agent
from tests.contract.backends import Backends
from tests.contract.engines import Engine, empty
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import serve_config


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The database engine of both backends."""
    named = request.param == "postgres"
    return Engine(request.getfixturevalue("postgres_url") if named else None)


def create_waiting(folder: Path, model_url: str, **options: Any) -> Deployment:
    """Create a deployment with an agent that waits for people."""
    shutil.copy(Path(paying_agent.__file__), folder)
    extra = '[[agents]]\nid = "payer"\nobject = "paying_agent:wait_for_people"\n'
    return create_deployment(folder, model_url, extra=extra, **options)


@pytest.fixture(scope="session")
def results() -> dict[str, Any]:
    """Results of both engines by name."""
    return {}


@pytest.fixture(scope="session")
def shared(
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
    engine: Engine,
    results: dict[str, Any],
) -> Iterator[Backends]:
    """Both backends on the same data."""
    folder = tmp_path_factory.mktemp("shared")
    with engine.databases() as databases:
        deployment = create_waiting(folder, model_endpoint.base_url, databases=databases)
        with serve_config(deployment.path) as server:
            yield Backends(deployment, deployment, server.url, engine.name, results)


@contextlib.contextmanager
def open_separate(
    folders: pytest.TempPathFactory, model_url: str, engine: Engine, results: dict[str, Any]
) -> Iterator[Backends]:
    """Open both backends, each on its own databases."""
    with contextlib.ExitStack() as stack:
        here, there = (
            create_waiting(
                folders.mktemp(name), model_url, databases=stack.enter_context(engine.databases())
            )
            for name in ("here", "there")
        )
        server = stack.enter_context(serve_config(there.path))
        yield Backends(here, there, server.url, engine.name, results)


@pytest.fixture(scope="session")
def separate_on_sqlite(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint, results: dict[str, Any]
) -> Iterator[Backends]:
    with open_separate(
        tmp_path_factory, model_endpoint.base_url, Engine(None), results
    ) as backends:
        yield backends


@pytest.fixture(scope="session")
def separate_on_postgres(
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
    postgres_url: str,
    results: dict[str, Any],
) -> Iterator[Backends]:
    with open_separate(
        tmp_path_factory, model_endpoint.base_url, Engine(postgres_url), results
    ) as backends:
        yield backends


@pytest.fixture
def separate(request: pytest.FixtureRequest, engine: Engine) -> Backends:
    """Each backend on its own empty databases.

    Each file runs its tests with one engine and then with the other one. A fixture of the session
    that depended on `engine` would start its server again for each file.
    """
    backends: Backends = request.getfixturevalue(f"separate_on_{engine.name}")
    empty(backends.here)
    empty(backends.there)
    return backends
