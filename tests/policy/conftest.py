"""An application for tests that need sessions and runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.policy.scenario import Scenario, open_scenario


@pytest.fixture(scope="module")
def scenario_data(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Scenario]:
    """Open an application with sessions of several users."""
    deployment = create_deployment(tmp_path_factory.mktemp("stage"), model_endpoint.base_url)
    with open_scenario(deployment) as made:
        yield made
