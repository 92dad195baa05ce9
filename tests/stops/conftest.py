"""One server for the tests of stops, and the endpoints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.model import ModelEndpoint
from tests.stops.server import StopServer, serve


@pytest.fixture(scope="session")
def server(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[StopServer]:
    with serve(tmp_path_factory.mktemp("stops"), model_endpoint) as running:
        yield running
    assert "Traceback" not in running.process.log_text
