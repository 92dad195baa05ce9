"""The local backend: a real database, and models on the stub endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deployment import Deployment, create_deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.postgres import postgres_url

__all__ = ["model_endpoint", "postgres_url", "pytest_pyfunc_call"]


@pytest.fixture
def deployment(tmp_path: Path, model_endpoint: ModelEndpoint) -> Deployment:
    folder = tmp_path / "world"
    folder.mkdir()
    return create_deployment(folder, model_endpoint.base_url)
