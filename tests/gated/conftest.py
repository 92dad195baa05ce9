"""Fixtures: a deployment with gated tools, and the model endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.model import ModelEndpoint
from tests.kit.site import Server, Site, create_site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Site:
    """The deployment of `server`."""
    return create_site(tmp_path_factory.mktemp("gated"), model_endpoint.base_url)


@pytest.fixture(scope="session")
def server(site: Site) -> Iterator[Server]:
    """A server that the tests share."""
    with site.serve_in_thread() as server:
        yield server


@pytest.fixture
def own_site(tmp_path: Path, model_endpoint: ModelEndpoint) -> Site:
    """A deployment for one test, whose servers it starts and stops."""
    folder = tmp_path / "site"
    folder.mkdir()
    return create_site(folder, model_endpoint.base_url)
