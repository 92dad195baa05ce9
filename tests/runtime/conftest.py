"""Models in the event loop of each test."""

from __future__ import annotations

from tests.kit.loop_model import model_endpoint, vendor_endpoint

__all__ = ["model_endpoint", "vendor_endpoint"]
