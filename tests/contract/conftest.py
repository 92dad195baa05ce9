"""Two doors to one port: the service here, and a server process over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.doors import Doors
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.process import serving
from tests.world import make_world

__all__ = ["model_endpoint", "pytest_pyfunc_call"]


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Doors]:
    """Both doors to the same state."""
    world = make_world(tmp_path_factory.mktemp("shared"), model_endpoint.base_url)
    with serving(world.path) as server:
        yield Doors(world, world, server.url)


@pytest.fixture
def twins(tmp_path: Path, model_endpoint: ModelEndpoint) -> Iterator[Doors]:
    """Each door to an empty state of its own."""
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
    here, there = (make_world(folder, model_endpoint.base_url) for folder in folders)
    with serving(there.path) as server:
        yield Doors(here, there, server.url)
