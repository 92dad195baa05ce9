"""Two doors to one port, the service here and a server process over HTTP: on both engines.

A server is started once for each engine and kind of doors; what a test leaves is removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.doors import Doors
from tests.contract.places import Places, empty
from tests.deployment import create_deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.postgres import postgres_url
from tests.process import serve_config

__all__ = ["model_endpoint", "postgres_url", "pytest_pyfunc_call"]


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest) -> Places:
    """Where the databases of both doors are."""
    named = request.param == "postgres"
    return Places(request.getfixturevalue("postgres_url") if named else None)


@pytest.fixture(scope="session")
def told() -> dict[str, Any]:
    """What was told through any doors, by what was asked."""
    return {}


@pytest.fixture(scope="session")
def shared(
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
    places: Places,
    told: dict[str, Any],
) -> Iterator[Doors]:
    """Both doors to the same state."""
    folder = tmp_path_factory.mktemp("shared")
    with places.databases() as databases:
        deployment = create_deployment(folder, model_endpoint.base_url, databases=databases)
        with serve_config(deployment.path) as server:
            yield Doors(deployment, deployment, server.url, places.engine, told)


@pytest.fixture(scope="session")
def _apart(
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
    places: Places,
    told: dict[str, Any],
) -> Iterator[Doors]:
    with contextlib.ExitStack() as stack:
        here, there = (
            create_deployment(
                tmp_path_factory.mktemp(name),
                model_endpoint.base_url,
                databases=stack.enter_context(places.databases()),
            )
            for name in ("here", "there")
        )
        server = stack.enter_context(serve_config(there.path))
        yield Doors(here, there, server.url, places.engine, told)


@pytest.fixture
def twins(_apart: Doors) -> Doors:
    """Each door to an empty state of its own."""
    empty(_apart.here)
    empty(_apart.there)
    return _apart
