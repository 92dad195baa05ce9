"""Fixtures: workers in real databases and real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployment import Deployment, create_deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.postgres import postgres_url
from tests.runs.shared_databases import SharedDatabases

__all__ = ["model_endpoint", "postgres_url", "pytest_pyfunc_call"]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedDatabases]:
    folder = tmp_path / "shared"
    folder.mkdir()
    shared = SharedDatabases(folder)
    yield shared
    shared.end_processes()


@pytest.fixture
def deployment(tmp_path: Path, model_endpoint: ModelEndpoint) -> Deployment:
    folder = tmp_path / "world"
    folder.mkdir()
    return create_deployment(folder, model_endpoint.base_url)
