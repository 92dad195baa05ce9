"""Fixtures that load a configuration text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pytest

from agentctl.config import Settings, load_settings
from agentctl.errors import InvalidConfiguration

AGENT = """
[[models]]
id = "fast"
provider = "demo"
model = "echo"

[[agents]]
id = "writer"
model = "fast"
"""
"""The smallest configuration with an agent."""


class Reads(Protocol):
    def __call__(self, text: str, environ: Mapping[str, str] | None = None) -> Settings: ...


class Refuses(Protocol):
    def __call__(self, text: str, environ: Mapping[str, str] | None = None) -> str: ...


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "agentctl.toml"


@pytest.fixture
def reads(file: Path) -> Reads:
    """Load a text, with an empty environment by default."""

    def read(text: str, environ: Mapping[str, str] | None = None) -> Settings:
        file.write_text(text, encoding="utf-8")
        return load_settings(file, environ or {})

    return read


@pytest.fixture
def refuses(reads: Reads, file: Path) -> Refuses:
    """Load an invalid text, and return its error without the name of the file."""

    def refuse(text: str, environ: Mapping[str, str] | None = None) -> str:
        with pytest.raises(InvalidConfiguration) as caught:
            reads(text, environ)
        detail = caught.value.detail
        assert detail.isprintable()
        assert detail.startswith((f"{file}: ", "AGENTCTL_", "JWT_"))
        return detail.removeprefix(f"{file}: ")

    return refuse
