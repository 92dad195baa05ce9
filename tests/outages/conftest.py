"""What becomes of requests and runs when databases and servers go away, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.endpoint import model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.own_postgres import OwnPostgres, own_postgres

__all__ = ["model_endpoint", "pytest_pyfunc_call", "server"]


@pytest.fixture(scope="session")
def server() -> Iterator[OwnPostgres]:
    """A PostgreSQL that tests may crash; each leaves it running, and uses schemas of its own."""
    with own_postgres() as server:
        yield server
