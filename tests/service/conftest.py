"""The local backend: a real database, and models on the stub endpoint."""

from __future__ import annotations

from tests.deployment import deploy, deployment
from tests.endpoint import model_endpoint
from tests.loops import pytest_pyfunc_call
from tests.postgres import postgres_url

__all__ = ["deploy", "deployment", "model_endpoint", "postgres_url", "pytest_pyfunc_call"]
