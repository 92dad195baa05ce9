"""The stub endpoint for the tests that start runs."""

from __future__ import annotations

from tests.endpoint import model_endpoint

__all__ = ["model_endpoint"]
