"""Programs of Debian packages, and the mode of the tests that take minutes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

__all__ = ["PACKAGING", "needs_packaging_mode", "require_program"]

PACKAGING = Path(__file__).parents[2] / "packaging"

needs_packaging_mode = pytest.mark.skipif(
    "AGENTCTL_TEST_PACKAGING" not in os.environ, reason="takes minutes: make test-packaging"
)


def require_program(name: str, package: str) -> str:
    """Return the path of a program; skip the test if its Debian package is not installed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"needs {name}: apt install {package}")
    return found
