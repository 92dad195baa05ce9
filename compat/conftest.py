"""The environment of the tests of this folder: that of the tests in `tests`."""

from __future__ import annotations

import pytest

from tests import conftest as common
from tests.conftest import clean_environment

__all__ = ["clean_environment", "pytest_configure"]

# A module with fixtures must not be imported before pytest loads it, so it is named here.
pytest_plugins = (*common.pytest_plugins, "compat.fixtures")


def pytest_configure(config: pytest.Config) -> None:
    """Use the hooks of the tests in `tests`: once, also if one run has tests of both folders."""
    if not config.pluginmanager.is_registered(common):
        config.pluginmanager.register(common, "tests.conftest")
