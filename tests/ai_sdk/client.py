"""The client of the AI SDK, which `make .peers/ai-sdk/.installed` installs with npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.conditions import PATIENCE
from tests.kit.process import base_environment

PACKAGES = Path(__file__).parents[2] / ".peers" / "ai-sdk"

_NODE = shutil.which("node")

needs_client = pytest.mark.skipif(
    _NODE is None or not (PACKAGES / ".installed").exists(),
    reason="needs the AI SDK: install Node 20 and npm, then make .peers/ai-sdk/.installed",
)


def read_with_client(streams: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the message that the client builds of each stream, and the errors that it reports."""
    done = subprocess.run(
        [str(_NODE), str(Path(__file__).with_name("read_streams.mjs")), str(PACKAGES)],
        input=json.dumps(streams),
        capture_output=True,
        text=True,
        check=False,
        env=base_environment(),
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
