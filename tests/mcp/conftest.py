"""Coroutines as tests, and the model endpoint."""

from tests.endpoint import model_endpoint
from tests.loops import pytest_pyfunc_call

__all__ = ["model_endpoint", "pytest_pyfunc_call"]
