"""A PostgreSQL server and PgBouncer."""

from __future__ import annotations

from tests.outages.conftest import server

__all__ = ["server"]
