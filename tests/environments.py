"""Environments of servers whose agents need other packages than the tests."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT

__all__ = ["find_adk"]


def find_adk() -> tuple[list[str], dict[str, str]]:
    """Return the command of agentctl next to Google ADK, and variables; skip without it."""
    python = ROOT / ".peers" / "adk" / "bin" / "python"
    if not python.exists():
        pytest.skip("needs the environment of Google ADK: make .peers/adk/.installed")
    # The library for other models would fetch a list of prices.
    return [str(python), "-m", "agentctl"], {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
