"""The commands of the shells."""

from __future__ import annotations

import pytest

from tests.kit.forking import define_function


@pytest.fixture(scope="session")
def function() -> str:
    """A function `agentctl` of shells, which costs a tenth of the program."""
    return define_function()
