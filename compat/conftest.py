"""The environment of the tests of this folder: that of the tests in `tests`."""

from __future__ import annotations

from tests.conftest import (
    clean_environment,
    pytest_configure,
    pytest_runtest_teardown,
    pytest_terminal_summary,
    pytest_unconfigure,
)
from tests.conftest import pytest_plugins as common_plugins

__all__ = [
    "clean_environment",
    "pytest_configure",
    "pytest_runtest_teardown",
    "pytest_terminal_summary",
    "pytest_unconfigure",
]

# A module with fixtures must not be imported before pytest loads it, so it is named here.
pytest_plugins = (*common_plugins, "compat.fixtures")
