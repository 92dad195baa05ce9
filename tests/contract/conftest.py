"""A deployment on each database engine, whose rows every test removes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.stories import Stage
from tests.contract.targets import create_stage
from tests.kit.engines import Engine, empty
from tests.kit.model import ModelEndpoint


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The database engine of a stage."""
    is_postgres = request.param == "postgres"
    return Engine(request.getfixturevalue("postgres_url") if is_postgres else None)


@pytest.fixture(scope="session")
def results() -> dict[str, Any]:
    """Results of both engines by name."""
    return {}


@pytest.fixture(scope="module")
def filled_stage(
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
    engine: Engine,
    results: dict[str, Any],
) -> Iterator[Stage]:
    """A deployment on the engine, with the data of earlier tests."""
    with engine.databases() as databases:
        folder = tmp_path_factory.mktemp("stage")
        deployment = create_stage(folder, model_endpoint.base_url, databases=databases)
        yield Stage(deployment, engine.name, results)


@pytest.fixture
def stage(filled_stage: Stage) -> Stage:
    """A deployment on the engine, without data."""
    empty(filled_stage.deployment)
    return filled_stage
