"""Forgets the syntax trees of the package after each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.architecture.sources import modules


@pytest.fixture(scope="module", autouse=True)
def forget_trees() -> Iterator[None]:
    """Forget the modules after a file of tests: their syntax trees take 160 MB."""
    yield
    modules.cache_clear()
