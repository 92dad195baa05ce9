"""Environments of servers whose agents need other packages than the tests."""

from __future__ import annotations

import pytest

from tests.kit.documents import ROOT

__all__ = ["find_adk"]


def find_adk() -> tuple[str, dict[str, str]]:
    """Return the interpreter with Google ADK, and variables of servers; skip without it."""
    python = ROOT / ".peers" / "adk" / "bin" / "python"
    if not python.exists():
        pytest.skip("needs the environment of Google ADK: make .peers/adk/.installed")
    # The library for other models would fetch a list of prices.
    return str(python), {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
