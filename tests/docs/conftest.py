"""The commands of the shells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.forked import forked_commands


@pytest.fixture(scope="session")
def function(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A function `agentctl` of shells, which costs a tenth of the program."""
    with forked_commands(tmp_path_factory.mktemp("forked")) as definition:
        yield definition
