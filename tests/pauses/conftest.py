"""A server with agents of every library that wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.model import ModelEndpoint
from tests.pauses.waiting import WaitingServer, create_waiting_deployment


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[WaitingServer]:
    """A server for all tests that kill none."""
    folder = tmp_path_factory.mktemp("waiting")
    with create_waiting_deployment(folder, model_endpoint.base_url).serve_in_thread() as server:
        yield server
