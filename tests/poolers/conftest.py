"""A PostgreSQL server behind PgBouncer."""

from __future__ import annotations

from tests.endpoint import model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.outages.conftest import server

__all__ = ["model_endpoint", "pytest_pyfunc_call", "server"]
