"""Fixtures: workers in real databases and real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployment import deployment
from tests.endpoint import model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.postgres import postgres_url
from tests.runs.shared_databases import SharedDatabases

__all__ = ["deployment", "model_endpoint", "postgres_url", "pytest_pyfunc_call"]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedDatabases]:
    folder = tmp_path / "shared"
    folder.mkdir()
    shared = SharedDatabases(folder)
    yield shared
    shared.end_processes()
