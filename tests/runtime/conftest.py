"""Fixtures: the stub endpoint of the models; tests may be coroutines."""

from __future__ import annotations

from tests.endpoint import model_endpoint
from tests.loops import pytest_pyfunc_call

__all__ = ["model_endpoint", "pytest_pyfunc_call"]
