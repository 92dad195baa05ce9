"""One server for each test process, for tests that only read. Other tests start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.deployment import Deploy, Deployment
from tests.server.seeds import seed
from tests.server.threaded_server import ThreadedServer, serve_in_thread


@pytest.fixture(scope="session")
def server(deploy: Deploy) -> Iterator[ThreadedServer]:
    """A running server with sessions and runs."""
    with serve_in_thread(deploy()) as host:
        seed(host)
        yield host


@pytest.fixture(scope="session")
def settled(deploy: Deploy) -> Deployment:
    """A configuration that several tests use, one after another."""
    return deploy()
