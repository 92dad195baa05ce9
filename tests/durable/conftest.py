"""Fixtures: a deployment with durable agents, and the model endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durable.agents import DURABLE
from tests.kit.model import ModelEndpoint
from tests.kit.site import Site, create_site


@pytest.fixture
def site(tmp_path: Path, model_endpoint: ModelEndpoint) -> Site:
    """A deployment for one test, whose servers it starts and kills."""
    folder = tmp_path / "site"
    folder.mkdir()
    return create_site(folder, model_endpoint.base_url, extra=DURABLE)
