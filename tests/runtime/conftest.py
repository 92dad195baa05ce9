"""The endpoint that plays the models of these tests."""

from __future__ import annotations

from tests.endpoint import model_endpoint

__all__ = ["model_endpoint"]
