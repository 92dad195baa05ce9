"""The environment and the fixtures of the tests of this folder: those of the tests in `tests`."""

from __future__ import annotations

import pytest

from tests import conftest as common
from tests.conftest import clean_environment, pytest_plugins

__all__ = ["clean_environment", "pytest_configure", "pytest_plugins"]


def pytest_configure(config: pytest.Config) -> None:
    """Use the hooks of the tests in `tests`: once, also if one run has tests of both folders."""
    if not config.pluginmanager.is_registered(common):
        config.pluginmanager.register(common, "tests.conftest")
