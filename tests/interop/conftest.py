"""Deployments whose models are in the event loop of a test."""

from __future__ import annotations

import pytest

from tests.kit.deployment import Deploy
from tests.kit.loop_model import LoopEndpoint, model_endpoint

__all__ = ["deploy", "model_endpoint"]


@pytest.fixture
def deploy(tmp_path_factory: pytest.TempPathFactory, model_endpoint: LoopEndpoint) -> Deploy:
    """Create deployments whose models are in the event loop of the test."""
    return Deploy(tmp_path_factory, model_endpoint)
