"""The endpoint that plays the models of these tests, which may be coroutines."""

from __future__ import annotations

from tests.endpoint import model_endpoint
from tests.loops import pytest_pyfunc_call

__all__ = ["model_endpoint", "pytest_pyfunc_call"]
