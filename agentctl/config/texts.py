"""The configuration texts that come with the package."""

from __future__ import annotations

from pathlib import Path

__all__ = ["SAMPLE"]

SAMPLE = (Path(__file__).parent / "sample.toml").read_text(encoding="utf-8")
"""What `agentctl init` writes: the text of `sample-config.toml`, which a test holds identical."""
