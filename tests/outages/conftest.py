"""Requests and runs during outages of databases and servers, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.postgres_server import PostgresServer, run_postgres_server

__all__ = ["server"]


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server that tests may crash.

    Each test leaves it running and uses separate schemas.
    """
    with run_postgres_server() as server:
        yield server
