"""Fixtures: workers in real databases and real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.loop_model import model_endpoint
from tests.runs.shared_databases import SharedDatabases

__all__ = ["model_endpoint", "shared"]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedDatabases]:
    folder = tmp_path / "shared"
    folder.mkdir()
    shared = SharedDatabases(folder)
    yield shared
    shared.end_processes()
