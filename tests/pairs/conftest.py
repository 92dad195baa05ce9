"""Fixtures: the model endpoint, the points of the databases, and the PostgreSQL server."""

from __future__ import annotations

import pytest

from tests.endpoint import ModelEndpoint
from tests.pairs import hosted, schedule


@pytest.fixture(autouse=True)
def points(monkeypatch: pytest.MonkeyPatch, model_endpoint: ModelEndpoint) -> None:
    """Install the points of the databases."""
    schedule.install(monkeypatch.setattr)
    monkeypatch.setattr(hosted, "URL", model_endpoint.base_url)
