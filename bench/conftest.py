"""The environment and the fixtures of the tests of this folder: those of the tests in `tests`."""

from __future__ import annotations

from tests.conftest import clean_environment, pytest_configure, pytest_plugins, pytest_unconfigure

__all__ = ["clean_environment", "pytest_configure", "pytest_plugins", "pytest_unconfigure"]
