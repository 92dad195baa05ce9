"""A server with agents on the stub endpoint, for the tests of client libraries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.service import Service, serving
from tests.kit.model import ModelEndpoint

__all__ = ["service"]


@pytest.fixture(scope="session")
def service(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Service]:
    """A running server, shared by the tests of a session."""
    with serving(tmp_path_factory.mktemp("clients"), model_endpoint) as service:
        yield service
