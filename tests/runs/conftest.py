"""Workers and their end: real databases, real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployment import Deployment, create_deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.postgres import postgres_url
from tests.runs.rig import Rig

__all__ = ["model_endpoint", "postgres_url", "pytest_pyfunc_call"]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    folder = tmp_path / "rig"
    folder.mkdir()
    rig = Rig(folder)
    yield rig
    rig.end_processes()


@pytest.fixture
def deployment(tmp_path: Path, model_endpoint: ModelEndpoint) -> Deployment:
    folder = tmp_path / "world"
    folder.mkdir()
    return create_deployment(folder, model_endpoint.base_url)
