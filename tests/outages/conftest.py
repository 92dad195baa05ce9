"""What becomes of requests and runs when databases and servers go away, on PostgreSQL."""

from __future__ import annotations

from tests.endpoint import model_endpoint
from tests.loops import pytest_pyfunc_call

__all__ = ["model_endpoint", "pytest_pyfunc_call"]
