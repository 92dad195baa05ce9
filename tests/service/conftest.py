"""The databases of a deployment, on each engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.kit.deployment import SQLITE_DATABASES
from tests.kit.postgres import postgres_schemas


@pytest.fixture(params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest) -> Iterator[Mapping[str, str]]:
    """The URLs of databases by id, for `create_deployment`: on SQLite, then on PostgreSQL."""
    if request.param == "sqlite":
        yield SQLITE_DATABASES
        return
    with postgres_schemas(request.getfixturevalue("postgres_url")) as schemas:
        yield schemas
