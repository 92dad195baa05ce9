"""The databases of a deployment, on each engine, and its models in the event loop of a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.kit.deployment import SQLITE_DATABASES, Deploy
from tests.kit.loop_model import LoopEndpoint, model_endpoint
from tests.kit.postgres import postgres_schemas

__all__ = ["databases", "deploy", "model_endpoint"]


@pytest.fixture(params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest) -> Iterator[Mapping[str, str]]:
    """The URLs of databases by id, for `create_deployment`: on SQLite, then on PostgreSQL."""
    if request.param == "sqlite":
        yield SQLITE_DATABASES
        return
    with postgres_schemas(request.getfixturevalue("postgres_url")) as schemas:
        yield schemas


@pytest.fixture
def deploy(tmp_path_factory: pytest.TempPathFactory, model_endpoint: LoopEndpoint) -> Deploy:
    """Create deployments whose models are in the event loop of the test."""
    return Deploy(tmp_path_factory, model_endpoint)
