"""An agent whose tool cannot be interrupted, for tests of work that goes on."""

from __future__ import annotations

HOLD = """
import time
from pathlib import Path


def hold(name: str) -> str:
    \"\"\"Block the thread until a file exists.\"\"\"
    place = Path(__file__).parent / name
    place.with_suffix(".began").touch()
    while not place.exists():
        time.sleep(0.02)
    return "let go"
"""
"""The text of a module with a tool that cannot be interrupted and that a test ends."""

NAPPER = """
[[models]]
id = "hold"
provider = "openai"
model = "tool:hold"
base_url = "{url}"

[[agents]]
id = "napper"
name = "Napper"
model = "hold"
tools = ["{module}:hold"]
"""
"""The agent `napper`.

`{url}` is the address of the model endpoint. `{module}` differs between servers, because those
in one process share their imported modules.
"""
