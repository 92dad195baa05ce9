"""The configuration of `agentctl serve --demo`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DEMO_CONFIG"]

DEMO_CONFIG = (Path(__file__).parent / "demo.toml").read_text(encoding="utf-8")
"""Two agents, a team and a workflow on the offline provider "demo"; keys under `keys/`."""
