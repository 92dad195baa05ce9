"""One application for the tests that need sessions and runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deployment import create_deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.policy.scenario import Stage, staged

__all__ = ["model_endpoint"]


@pytest.fixture(scope="module")
def stage(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Stage]:
    """An application with sessions of several users in it."""
    deployment = create_deployment(tmp_path_factory.mktemp("stage"), model_endpoint.base_url)
    with staged(deployment) as made:
        yield made
